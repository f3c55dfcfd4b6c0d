r"""What an answer is, by its whole text: a value, a list, an interval, a relation. What is not understood equals only itself."""

import re
from dataclasses import dataclass
from functools import lru_cache

from openrlhf_sagc.grading.cleaning import cleaned, number, tokens
from openrlhf_sagc.grading.words import CURRENCY, LEAD, PHRASES, SAYS, SCALES, unit

SIGNS = frozenset(("=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx", r"\in", r"\equiv", r"\subset", r"\subseteq"))
VARIABLE = re.compile(r"(?!\\pi|\\infty|e$)(?:[A-Za-z]|\\[a-z]+ ?)(?:_\{?\w+\}?)?")
_OPTION = re.compile(
    r"\(([A-J])\)|([A-J])(?:[.)]|:(?![A-Z])|$)|⟦(?:[Oo]ption|[Cc]hoice|[Aa]nswer)(?:⟧\(?| )([A-J])(?:⟧|\)?$)"
)
_OTHER_OPTION = re.compile(
    r"(?<![\w\\{^⟦°])(?:[AI](?!⟦[a-z]+)|[B-HJ-Z])(?![\w^'])|\b(?:not?|none|neither|wrong|false|incorrect)\b"
)
_CLOCK = re.compile(r"(\d{1,2})(?::(\d{2}))? ?(?:⟦([ap])\.?m\.?⟧)?", re.IGNORECASE)
_ENVIRONMENT = re.compile(
    r"[(\[]?\\begin\{(\w*?)(matrix|)\}(\{[lcr| ]+\})?((?:(?!\\begin).)*)\\end\{\w*\}[)\]]?", re.DOTALL
)
_CONNECTIVE = re.compile(
    r"(?<=[⟦ ])(and|&|und|et|y|和|or|или|oder|ou|或)(?=[⟧ ])(?! (?:a|an|half|\w*quarters?|thirds?|more|less|fewer|above|below|one|two|three)\b)"
)
_LEADS = re.compile(r"⟦([^⟧]*)⟧|\\?[A-Za-z](?![A-Za-z({^_])[,:]?|[,:]")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?/\d\d?/\d{4}|(?:\d{3}-)?\d{3}-\d{4}")  # or a telephone number
DEEPEST = 8  # brackets in brackets that are looked into


@dataclass(frozen=True)
class Node:
    r"""An answer or a part of one.

    kind: `value` (text is LaTeX, unit what it counts), `words`, `option` (text is its letters, items what it says), `relation` (text has the
        signs between the items), or what joins the items: `,` `or` `and` `±` `{}` without order, `()` `[)` `<>` and so on, `row`, `column`,
        `matrix`, `:` for a ratio, `+` for amounts, `{|}` for a set by a condition, `cup` for numbers in intervals.
    """

    kind: str
    text: str = ""
    unit: str | None = None
    items: tuple["Node", ...] = ()


def plain(text: str) -> str:
    """A text for comparison with another: without marks, articles, gaps, and the case of words."""
    words = re.sub(r"⟦[^⟧]*⟧", lambda mark: re.sub(r"[^ ⟦⟧]{3,}|N[oO]\b", lambda word: word[0].lower(), mark[0]), text)
    words = re.sub("[⟦⟧]", " ", words)
    return re.sub(r"\s+", " ", re.sub(r"(?<![\w\\])(?:[Aa]n?|[Tt]he) (?=[A-Za-z]{2})", "", words)).strip(" .")


def split_at(text: str, separators: frozenset[str]) -> tuple[list[str], list[str]]:
    """The parts of the text between the separators outside all brackets, and the separators."""
    parts, found, start = [], [], 0
    for token, at, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[start:at].strip())
            found.append(token)
            start = at + len(token)
    return [*parts, text[start:].strip()], found


@lru_cache(maxsize=5_000)
def read(answer: str) -> Node:
    """What the answer is."""
    text = re.sub(r"\.?(?:⟦I |I⟦|⟦)hope (?:it|this|that) is correct⟧\.?$", "", cleaned(answer))
    at, end = 0, 0
    while found := _LEADS.match(text, at):
        words = (found[1] or "").lower().split()
        if not all(word.strip(".,:") in LEAD for word in words):
            break
        at = found.end()
        if words and words[-1].strip(":") in SAYS or found[1] and found[0].endswith(":"):
            end = at
    return _read(text[end:].lstrip(" :=") or text, 0)


def _read(text: str, depth: int) -> Node:
    text = text.strip(" ,;")
    while _whole(text, "{", "}"):
        text = text[1:-1].strip(" ,;")
    if depth > DEEPEST or _DATE.fullmatch(text):
        return Node("words", text)
    text = re.sub(r"^⟦([A-Za-z])⟧$", r"\1", text)
    found = (
        reader(text, depth + 1)
        for reader in (_phrase, _option, _clock, _environment, _list, _relation, _union, _bracket, _plus_minus)
    )
    return next((node for node in found if node), None) or _quantities(text)


def _several(kind: str, texts: list[str], depth: int) -> Node:
    return Node(kind, items=tuple(_read(text, depth) for text in texts))


def _whole(text: str, opening: str, closing: str) -> bool:
    """Whether the text is one pair of these brackets with what they hold."""
    if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
        return False
    return all(depth > 0 or at in (0, len(text) - len(closing)) for _, at, depth in tokens(text))


def _phrase(text: str, _: int) -> Node | None:
    said = {
        r"\emptyset": "no solution",
        r"\{\}": "no solution",
        r"\mathbb{R}": "all real numbers",
        r"(-\infty,\infty)": "all real numbers",
    }.get(text) or PHRASES.get(plain(text).lower())
    endless = {"infinity": r"\infty", "negative infinity": r"-\infty"}.get(said or "")
    return Node("value", endless) if endless else Node("words", said) if said else None


def _option(text: str, depth: int) -> Node | None:
    if re.fullmatch("[A-J]{2,5}", text) and list(text) == sorted(set(text)):
        return Node("option", text)
    match = _OPTION.match(text)
    rest = text[match.end() :].strip(" .:") if match else ""
    if not match or _OTHER_OPTION.search(rest):
        return None
    return Node("option", match[1] or match[2] or match[3], items=(_read(rest, depth),) if rest else ())


def _clock(text: str, _: int) -> Node | None:
    """A time of day, in words that no other answer has."""
    match = _CLOCK.fullmatch(text)
    if not match or not (match[2] or match[3]) or int(match[1]) > 12 + 12 * (not match[3]) or int(match[2] or 0) > 59:
        return None
    hours = int(match[1]) % 12 + 12 * (match[3] in "pP") if match[3] else int(match[1])
    return Node("words", f"{hours}:{match[2] or '00'} o'clock")


def _environment(text: str, depth: int) -> Node | None:
    """A matrix as its rows, a column as a vector, a system of equations as a list."""
    match = _ENVIRONMENT.fullmatch(text)
    if not match or match[1] in ("v", "V"):
        return None
    rows = [row for row in match[4].split(r"\\") if row.strip()]
    if not match[2] and text[0] == "\\":
        return _several(",", [row.replace("&", "" if "=" in row else ",") for row in rows], depth)
    if all("&" not in row for row in rows):
        return _several("column", rows, depth)
    return Node("matrix", items=tuple(_several("row", row.split("&"), depth) for row in rows))


def _list(text: str, depth: int) -> Node | None:
    """Parts between ; or, and, or a comma, outside of brackets."""
    text = re.sub(r"⟦ ?⟧", "", re.sub(r" ?(⟦|⟧) ?", r"\1", _CONNECTIVE.sub(r"⟧⟦\1⟧⟦", text))) if "⟦" in text else text
    marks = set(re.findall(r"⟦[^⟧ ]*⟧", text))
    ors = {mark for mark in marks if mark[1:-1] in ("or", "или", "oder", "ou", "或")}
    ands = {mark for mark in marks if mark[1:-1] in ("and", "&", "und", "et", "y", "和")}
    for joint, separators in ((",", {";"}), ("or", ors), (",", ands | {","})):
        parts, found = split_at(text, frozenset(separators))
        if found:
            if not (parts[0] and parts[-1]) and "⟦" in found[0] + found[-1]:
                return Node("words", text)
            parts = [part for part in (part.strip(" ,;") for part in parts) if part]
            joint = "and" if joint == "," and not {",", ";"} & set(found) else joint
            return _read(parts[0], depth) if len(parts) == 1 else _several(joint, parts, depth)
    return None


def _relation(text: str, depth: int) -> Node | None:
    sides, signs = split_at(text, SIGNS)
    if signs and not sides[0] and signs[0] in ("=", r"\approx"):
        return _read(text[text.index(signs[0]) + len(signs[0]) :], depth)
    if not signs or not all(sides[1:]):
        return Node("words", text) if signs else None
    if signs == ["="] and VARIABLE.fullmatch(sides[1]) and number(sides[0]) is not None:
        sides = sides[::-1]  # 5 = x
    node = Node(
        "relation", " ".join(signs), items=tuple(_read(side, depth) if side else Node("words") for side in sides)
    )
    names, values = node.items[:2]
    if signs == ["="] and values.kind == "±":
        return Node(",", items=tuple(Node("relation", "=", items=(names, item)) for item in values.items))
    if signs == ["="] and names.kind == values.kind == "()" and len(names.items) == len(values.items):
        return Node(",", items=tuple(Node("relation", "=", items=pair) for pair in zip(names.items, values.items)))
    return node


def _union(text: str, depth: int) -> Node | None:
    parts, found = split_at(text, frozenset([r"\cup"]))
    node = _several("cup", parts, depth) if found and all(parts) else None
    return node if not found or node and all(item.items for item in node.items) else Node("words", text)


def _bracket(text: str, depth: int) -> Node | None:
    """A set, a pair or an interval, a vector; an expression in brackets is that expression."""
    outwards = re.fullmatch(r"([\[\]])([^()\[\]]*,[^()\[\]]*)([\[\]])", text)
    if outwards:  # ]2,5[ is (2,5)
        text = ("[" if outwards[1] == "[" else "(") + outwards[2] + ("]" if outwards[3] == "]" else ")")
    opening = next((one for one in ("(", "[", r"\{", r"\langle") if text.startswith(one)), "")
    closing = next((one for one in (")", "]", r"\}", r"\rangle") if text.endswith(one)), "")
    if not opening or not closing or not _whole(text, opening, closing) or (opening == r"\{") != (closing == r"\}"):
        return None
    inside = text[len(opening) : -len(closing)].strip()
    items, found = split_at(inside, frozenset(",;"))
    if opening == r"\{":
        for bar in ("|", ":"):
            parts = split_at(inside, frozenset([bar]))[0]
            if len(parts) == 2 and all(parts):
                condition = _read(parts[1], depth)
                is_real = parts[0][:1] in parts[1] and re.fullmatch(
                    rf"(?:{VARIABLE.pattern})(?:\\in ?\\mathbb\{{R\}})?", parts[0]
                )
                return Node(
                    "cup" if is_real else "{|}", items=(condition,) if is_real else (_read(parts[0], depth), condition)
                )
        nodes = _several("{}", [item for item in items if item], depth)
        if any(item.startswith(r"\{") for item in items):
            return Node("words", text)
        return nodes.items[0] if len(nodes.items) == 1 and nodes.items[0].kind == "value" else nodes
    if not found:
        return _read(inside, depth) if opening + closing in ("()", "[]") else None
    pair = opening[-1].replace("e", "<") + closing[-1].replace("e", ">")
    if not all(items) or len(items) != 2 and pair not in ("()", "[]", "<>"):
        return Node("words", text)
    return _several(pair, items, depth)


def _plus_minus(text: str, depth: int) -> Node | None:
    before, *after = re.split(r"\\(?:pm|mp)(?![A-Za-z]) ?", text)
    if len(after) != 1:
        return None
    signs = ("+" if before and before[-1] not in "{([" else "", "-")
    return _several("±", [f"{before}{sign}{after[0]}" for sign in signs], depth)


def _quantities(text: str) -> Node:
    """A value with its unit, if it has one; several that have one each; a ratio; else words."""
    if "⟦°⟧" in text and re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = re.sub(r"([\d.]+|\\?[A-Za-z]+|\})⟦°⟧", r"(\1\\cdot \\frac{\\pi}{180})", text)
    if "⟦" not in text:
        ratio, found = split_at(text, frozenset(":"))
        return (
            Node(":", items=tuple(Node("value", part) for part in ratio))
            if found and all(ratio)
            else Node("value" if text else "words", text)
        )
    front = re.fullmatch(r"([+-]?)⟦([^⟧]*)⟧([^⟦⟧]+(?:⟦[^⟧]*⟧)?)", text)
    if (
        front
        and front[2].lower().strip(".") in CURRENCY
        and (rest := _quantities(front[1] + front[3])).kind == "value"
    ):
        return Node("value", rest.text, rest.unit or unit(front[2]))
    pieces = re.findall(r"([^⟦⟧]+)⟦([^⟧]+)⟧", text)
    values = [_value(value.strip(" ,"), name.strip(" ,.")) for value, name in pieces]
    if "".join(f"{value}⟦{name}⟧" for value, name in pieces) != text or not all(values):
        return Node("words", text)
    return values[0] if len(values) == 1 else Node("+", items=tuple(values))  # type: ignore[arg-type,return-value]


def _value(latex: str, name: str) -> Node | None:
    scale = name[:1] if name[:1] in SCALES else name.partition(" ")[0]
    size = SCALES.get(scale.lower().removesuffix("s"))
    name = name[len(scale) :].strip() if size else name
    if name and unit(name) is None and name.lower() not in ("rad", "radian", "radians"):
        return None
    return Node("value", rf"({latex})\cdot {size}" if size else latex, unit(name) if name else None)

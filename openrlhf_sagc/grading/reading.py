r"""What an answer is: a value, a list, an interval, a relation, ... Pure text; no algebra.

`read` takes an answer of any spelling. What it does not understand is `Words`, which equal only themselves.
"""

import re
from functools import lru_cache

from openrlhf_sagc.grading.braces import split_at, tokens
from openrlhf_sagc.grading.latex import cleaned
from openrlhf_sagc.grading.nodes import (
    Many,
    Node,
    Option,
    Relation,
    Union,
    Value,
    Words,
    is_name,
    is_variable,
    plain,
)
from openrlhf_sagc.grading.numbers import number
from openrlhf_sagc.grading.quantities import clock, counted, quantities
from openrlhf_sagc.grading.words import LEAD_WORDS, PHRASES, TAILS

DEEPEST = 8  # brackets in brackets that are looked into


_SIGNS = {
    "=": "=",
    "<": "<",
    ">": ">",
    r"\le": r"\le",
    r"\ge": r"\ge",
    r"\ne": r"\ne",
    r"\approx": r"\approx",
    r"\in": r"\in",
}
_SIGNS |= {
    r"\equiv": r"\equiv",
    r"\sim": r"\sim",
    r"\subset": r"\subset",
    r"\subseteq": r"\subseteq",
    r"\notin": r"\notin",
}
_ENVIRONMENT = re.compile(
    r"(?:[(\[|]|\\\{)?\\begin\{([a-zA-Z]*)(?:matrix|\*)?\}(?:\{[lcr| ]*\})?(.*)\\end\{[a-zA-Z*]*\}(?:[)\]|]|\\\})?",
    re.DOTALL,
)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?/\d\d?/\d{4}|(?:\d{3}-)?\d{3}-\d{4}")  # or a telephone number
_OPTION = re.compile(
    r"\(([A-J])\)|([A-J])(?=[.)]|:(?![A-Z])|$)[.:)]?|⟦(?:[Oo]ption|[Cc]hoice|[Aa]nswer)(?:⟧:?\(?([A-J])\)?(?=[.:)]|$)| ([A-J])⟧)"
)
_NEXT_OPTION = re.compile(r"[,;⟧]\(?[A-J][:)]")
_LETTERS = re.compile(r"[A-J]{2,5}")
_LEADS = re.compile(r"(?:⟦([^⟧]*)⟧|\\?[A-Za-z](?![A-Za-z({^_])|[,:])[,:]?")


@lru_cache(maxsize=20_000)
def read(answer: str) -> Node:
    """What the answer is."""
    text = _without_lead(TAILS.sub("", cleaned(answer)))
    return _read(counted(text), 0)


def _without_lead(text: str) -> str:
    """The text without words of the closed list in front of it that say that the answer follows."""
    at, end = 0, 0
    while found := _LEADS.match(text, at):
        words = (found[1] or "").casefold().split()
        known = next((i for i, word in enumerate(words) if word.strip(".,:") not in LEAD_WORDS), len(words))
        if known < len(words):
            said = max((i + 1 for i, word in enumerate(words[:known]) if word in _SAYING), default=0)
            return f"⟦{' '.join(found[1].split()[said:])}⟧{text[found.end(1) + 1:]}" if said else text[end:]
        at = found.end()
        if words and (words[-1] in _SAYING or found[0].endswith(":")):
            end = at
    return text[end:].lstrip(" :=") or text


_SAYING = frozenset(
    "is are be equals answer result get have so thus hence therefore that 答案 答案是 答案为 是 为 结果是 ответ réponse respuesta antwort".split()
)


def _whole(text: str, opening: str, closing: str) -> bool:
    """Whether the text is one pair of these brackets with what they hold."""
    if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
        return False
    return all(depth > 0 or at in (0, len(text) - len(closing)) for _, at, depth in tokens(text))


def _read(text: str, depth: int) -> Node:
    text = text.strip(" ,;")
    while _whole(text, "{", "}"):
        text = text[1:-1].strip(" ,;")
    text = re.sub(r"^⟦([A-Za-z])⟧$", r"\1", text)
    if depth > DEEPEST:
        return Words(text)
    return (
        _phrase(text)
        or (Words(text) if _DATE.fullmatch(text) else None)
        or _option(text, depth)
        or clock(text)
        or _environment(text, depth)
        or _list(text, depth)
        or _relation(text, depth)
        or _union(text, depth)
        or _bracket(text, depth)
        or _plus_minus(text, depth)
        or quantities(text)
    )


def _phrase(text: str) -> Node | None:
    if text in (r"\emptyset", r"\{\}"):
        return Words("no solution")
    if text in ("+\\infty", "\\infty"):
        return Value(r"\infty")
    if text in (r"\mathbb{R}", r"(-\infty,\infty)", r"(-\infty,+\infty)"):
        return Words("all real numbers")
    said = PHRASES.get(plain(text).casefold())
    if said == "infinity":
        return Value(r"\infty")
    if said == "negative infinity":
        return Value(r"-\infty")
    return Words(said) if said else None


def _option(text: str, depth: int) -> Node | None:
    if _LETTERS.fullmatch(text) and len(set(text)) == len(text):
        return Option("".join(sorted(text)), Value(text))
    match = _OPTION.match(text)
    if not match:
        return None
    letter = match[1] or match[2] or match[3] or match[4]
    rest = text[match.end() :].strip(" .:")
    if not rest:
        return Option(letter, None)
    if _NEXT_OPTION.search(rest):
        return None
    if match[2] and text[match.end() - 1] not in ".:)":
        return None
    return Option(letter, _read(rest, depth + 1))


def _environment(text: str, depth: int) -> Node | None:
    """A matrix as its rows, a column as a vector, a system of equations as a list."""
    match = _ENVIRONMENT.fullmatch(text)
    if not match or r"\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2]) if row.strip()]
    name = match[1].removesuffix("matrix")
    if name in ("cases", "aligned", "align", "array", "gathered", "split") and not (
        name == "array" and text[0] in "([|"
    ):
        return Many(",", tuple(_read(row.replace("&", "" if "=" in row else ","), depth + 1) for row in rows))
    cells = [tuple(_read(cell, depth + 1) for cell in row.split("&")) for row in rows]
    bars = "|" if name in ("v", "V") or text[0] == "|" else ""
    if bars or not cells or len({len(row) for row in cells}) != 1:
        return None
    if len(cells[0]) == 1:
        return Many("column", tuple(cell for (cell,) in cells))
    if len(cells) == 1:
        return Many("row", cells[0])
    return Many("matrix", tuple(Many("row", row) for row in cells))


_AND, _OR = frozenset("and & и und et y 和".split()), frozenset("or или oder ou 或".split())
_NO_LIST = frozenset(
    "a an half quarter third more less fewer so above below under over greater smaller one two three four five".split()
)


def _list(text: str, depth: int) -> Node | None:
    """Parts between ; or, and, or a comma, outside of brackets."""
    text = re.sub(r"⟦([^⟧]* [^⟧]*)⟧", _connectives, text)
    marks = {mark for mark in re.findall(r"⟦[^⟧ ]*⟧", text)}
    ors, ands = ({mark for mark in marks if mark[1:-1].casefold() in words} for words in (_OR, _AND))
    for joint, separators in ((";", {";"}), ("or", ors), (",", ands | {","})):
        parts, found = split_at(text, frozenset(separators))
        if not found:
            continue
        if not parts[0].strip() and "⟦" in found[0] or not parts[-1].strip() and "⟦" in found[-1]:
            return Words(text)
        parts = [part for part in (part.strip(" ,;") for part in parts) if part]
        if len(parts) == 1:
            return _read(parts[0], depth + 1)
        joint = "and" if joint == "," and "," not in found else joint
        return Many(joint, tuple(_read(part, depth + 1) for part in parts)) if parts else Words("")
    return None


def _connectives(match: re.Match) -> str:
    """`and`, `or` in a mark of their own, unless they are part of a number: and a half, or more."""
    words = match[1].split(" ")
    groups: list[list[str]] = [[]]
    for i, word in enumerate(words):
        beside = {other.casefold() for other in words[max(0, i - 1) : i + 2]}
        if word.casefold() in _AND | _OR and not beside & _NO_LIST:
            groups += [[word], []]
        else:
            groups[-1].append(word)
    return "".join(f"⟦{' '.join(group)}⟧" for group in groups if group)


def _relation(text: str, depth: int) -> Node | None:
    sides, signs = split_at(text, frozenset(_SIGNS))
    if not signs:
        return None
    if not sides[0].strip() and signs[0] in ("=", r"\approx"):
        return _read(text[text.index(signs[0]) + len(signs[0]) :], depth + 1)
    if not all(side.strip() for side in sides[1:]):
        return Words(text)
    read_sides = tuple(_read(side, depth + 1) if side.strip() else Words("") for side in sides)
    if len(signs) == 1 and signs[0] == "=" and is_name(sides[0]):
        if isinstance(read_sides[1], Many) and read_sides[1].joint == "±":
            return Many(",", tuple(Relation((read_sides[0], item), ("=",)) for item in read_sides[1].items))
    if signs == ["="]:
        if is_variable(sides[1]) and isinstance(read_sides[0], Value) and number(read_sides[0].latex) is not None:
            return Relation(read_sides[::-1], ("=",))  # 5 = x
        names, values = read_sides
        if isinstance(names, Many) and isinstance(values, Many) and names.joint == values.joint == "()":
            if len(names.items) == len(values.items):
                return Many(",", tuple(Relation(pair, ("=",)) for pair in zip(names.items, values.items)))
    return Relation(read_sides, tuple(signs))


def _union(text: str, depth: int) -> Node | None:
    parts, found = split_at(text, frozenset([r"\cup"]))
    if found and all(part.strip() for part in parts):
        items = tuple(_read(part, depth + 1) for part in parts)
        return Union(items) if all(isinstance(item, (Many, Union, Words)) for item in items) else Words(text)
    match = re.fullmatch(r"(?:\\mathbb\{R\}|\(-\\infty,\+?\\infty\))(?:\\setminus ?|-)\\\{(.*)\\\}", text)
    if match:
        without = _read(match[1], depth + 1)
        names = without.items if isinstance(without, Many) else (without,)
        return Many("and", tuple(Relation((Value("x"), item), (r"\ne",)) for item in names))
    return None


def _bracket(text: str, depth: int) -> Node | None:
    """A set, a pair or an interval, a vector; an expression in brackets is that expression."""
    for opening in ("(", "[", r"\{", r"\langle"):
        if not text.startswith(opening):
            continue
        closing = next((close for close in (")", "]", r"\}", r"\rangle") if text.endswith(close)), None)
        if closing is None or not _whole(text, opening, closing):
            return None
        inside = text[len(opening) : -len(closing)].strip()
        if opening == r"\{":
            return _set(inside, depth) if closing == r"\}" else None
        items, found = split_at(inside, frozenset({",", ";"}))
        if not found:
            return _read(inside, depth + 1) if (opening, closing) in (("(", ")"), ("[", "]")) else None
        if not all(item.strip() for item in items):
            return Words(text)
        pair = {r"\langle": "<", "(": "(", "[": "["}[opening] + {r"\rangle": ">", ")": ")", "]": "]"}.get(closing, "")
        if len(items) != 2 and pair not in ("()", "[]", "<>"):
            return Words(text)
        return Many(pair, tuple(_read(item, depth + 1) for item in items))
    return None


def _set(inside: str, depth: int) -> Node:
    for bar in ("|", ":"):
        parts, found = split_at(inside, frozenset([bar]))
        if len(found) == 1 and all(part.strip() for part in parts):
            name, condition = parts
            read_condition = _read(condition, depth + 1)
            named, *domain = re.split(r"\\in\b", name)
            if is_name(named) and domain in ([], [r"\mathbb{R}"]) and isinstance(read_condition, (Relation, Many)):
                return Union((read_condition,))
            return Many("{|}", (_read(name, depth + 1), read_condition))
    items, _ = split_at(inside, frozenset({",", ";"}))
    nodes = tuple(_element(item.strip(), depth + 1) for item in items if item.strip())
    return nodes[0] if len(nodes) == 1 and items[0].strip()[:2] not in (r"\{", r"\e") else Many("{}", nodes)


def _element(text: str, depth: int) -> Node:
    """What stands in a set; a set of one is a set there."""
    node = _read(text, depth)
    alone = _whole(text, r"\{", r"\}") and not (isinstance(node, (Many, Union)) or text == r"\{\}")
    return Many("{}", (node,)) if alone else node


def _plus_minus(text: str, depth: int) -> Node | None:
    found = [(at, token) for token, at, level in tokens(text) if token in (r"\pm", r"\mp")]
    if len(found) != 1:
        return None
    at, token = found[0]
    before, after = text[:at], text[at + 3 :].strip()
    signs = ("+", "-") if token == r"\pm" else ("-", "+")
    pair = [_read(f"{before}{sign if before or sign == '-' else ''}{after}", depth + 1) for sign in signs]
    return Many("±", tuple(pair))

r"""What an answer is, by its whole text: a value, a list, an interval, a relation. What is not understood equals only itself."""

import re
from functools import lru_cache
from typing import NamedTuple

from openrlhf_sagc.grading.cleaning import CURRENCY, LEAD, PHRASES, SAYS, SCALES, cleaned, number, tokens, unit

SIGNS = frozenset(("=", "<", ">", r"\le", r"\ge", r"\ne", r"\approx", r"\in", r"\equiv", r"\subset", r"\subseteq"))
_FLIPPED = {">": "<", r"\ge": r"\le"}
LISTS = (",", "and", "or", "{}", "±")
PAIRS = ("()", "(]", "[)", "[]")
_BRACKETS = re.compile(r"(\(|\[|\\\{|\\langle ?)(.*)(\)|\]|\\\}|\\rangle ?)", re.DOTALL)
_VARIABLE = re.compile(r"(?!\\pi|\\infty|e$)(?:[A-Za-z]|\\[a-z]+ ?)(?:_\{?\w+\}?)?")
_OPTION = re.compile(r"\(([A-J])\)|([A-J])(?:[.)]|:(?![A-Z])|$)|⟦(?i:option|choice|answer)(?:⟧\(?| )([A-J])(?:⟧|\)?$)")
_OTHER_OPTION = re.compile(
    r"(?<![\w\\{^⟦°])(?:[AI](?!⟦[a-z]+)|[B-HJ-Z])(?![\w^'])|\b(?:not?|none|neither|wrong|false|incorrect)\b"
)
_MATRIX = re.compile(r"(?s)[(\[]?\\begin\{(\w*?)(matrix|)\}(?:\{[lcr| ]+\})?((?:(?!\\begin).)*)\\end\{\w*\}[)\]]?")
_WORDS, _SAID = ("|".join(map(re.escape, words)) for words in (LEAD, SAYS))
_LEADS = re.compile(  # The answer is, Thus the smallest k is, Answer:
    rf"(?i)(?:⟦(?:(?:{_WORDS})[.,:]*(?: |(?=⟧)))*⟧[,:]*|\\?[A-Za-z](?![A-Za-z({{^_])[,:]?)*"
    rf"(?:⟦(?:(?:{_WORDS})[.,:]* )*(?:(?:{_SAID})[.,]*⟧|(?:{_WORDS}):⟧|(?:{_WORDS})⟧:))[ :=]*(?=.)"
)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?/\d\d?/\d{4}|(?:\d{3}-)?\d{3}-\d{4}")  # or a telephone number
DEEPEST = 8  # brackets in brackets that are looked into


class Node(NamedTuple):
    r"""An answer or a part of one.

    kind: `value` (text is LaTeX, unit what it counts), `words`, `option` (text is its letter, items what it says), `relation` (text has
        the signs between the items), `set` of real numbers (items are intervals, text the name that it is about, if one is said), or
        what joins the items: `,` `and` `or` `{}` `±` without order, `()` `[)` `[]` and so on, `matrix`, `row`, `+` for amounts.
    """

    kind: str
    text: str = ""
    unit: str | None = None
    items: tuple["Node", ...] = ()


_LOW, _HIGH = Node("value", r"-\infty"), Node("value", r"\infty")


def plain(text: str) -> str:
    """A text for comparison with another: without marks, articles, gaps, and the case of words."""
    text = re.sub(r"(?<=[⟦ ])(?:[^ ⟦⟧]{3,}|N[oO]|[AP]M)(?=[⟧ ])", lambda word: word[0].lower(), text)
    text = re.sub(r"\b([ap])\.m\b", r"\1m", re.sub("[⟦⟧⟪⟫]", " ", text))
    text = re.sub(r"(?<![\w\\])(?:[Aa]n?|[Tt]he) (?=[A-Za-z]{2})", "", text)
    return re.sub(r"\s+", " ", text).strip(" .")


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
    return _read(_LEADS.sub("", text, 1) if _LEADS.match(text) else text, 0)


def _read(text: str, depth: int) -> Node:
    text = text.strip(" ,;")
    while _whole(text, "{", "}"):
        text = text[1:-1].strip(" ,;")
    if depth > DEEPEST or _DATE.fullmatch(text):
        return Node("words", text)
    text = re.sub(r"^⟦([A-Za-z])⟧$", r"\1", text)
    readers = (_phrase, _option, _matrix, _list, _relation, _union, _bracket, _plus_minus)
    return next((node for reader in readers if (node := reader(text, depth + 1))), None) or _quantities(text)


def _several(kind: str, texts: list[str], depth: int) -> Node:
    return _joined(kind, [_read(text, depth) for text in texts])


def _joined(kind: str, items: list[Node]) -> Node:
    """Items as they are; x = 1, x = 2 as 1, 2; x = 1, y = 2 as (1, 2), in the order of their names."""
    if kind in LISTS:  # what plus-minus stands for are two of them
        items = [part for item in items for part in (item.items if item.kind == "±" else (item,))]
    firsts = [item.items[0].text if item.kind == "relation" and item.text == "=" else "" for item in items]
    names = sorted({first for first in firsts if _VARIABLE.fullmatch(first)})
    if kind in LISTS and len(names) == 1 < len(items):
        items = [item.items[1] if first == names[0] else item for item, first in zip(items, firsts)]
    elif kind in (",", "and", "()", "{}") and len(names) == len(items) > 1:
        kind, items = "()", [items[firsts.index(name)].items[1] for name in names]
    else:
        names = []
    return Node(kind, " ".join(names), items=tuple(items))


def _whole(text: str, opening: str, closing: str) -> bool:
    """Whether the text is one pair of these brackets with what they hold."""
    if not (text.startswith(opening) and text.endswith(closing)) or len(text) < len(opening) + len(closing):
        return False
    return all(depth > 0 or at in (0, len(text) - len(closing)) for _, at, depth in tokens(text))


def _phrase(text: str, _: int) -> Node | None:
    signs = {r"\emptyset": "no solution", r"\{\}": "no solution", r"\mathbb{R}": "all real numbers"}
    said = signs.get(text.replace(r"(-\infty,\infty)", r"\mathbb{R}")) or PHRASES.get(plain(text).lower())
    endless = {"infinity": _HIGH, "negative infinity": _LOW}.get(said or "")
    return endless or (Node("words", said) if said else None)


def _option(text: str, depth: int) -> Node | None:
    if re.fullmatch("[A-J]{2,5}", text) and list(text) == sorted(set(text)):
        return _several("and", list(text), depth)._replace(text=text)  # or a length AB
    match = _OPTION.match(text)
    rest = text[match.end() :].strip(" .:") if match else ""
    if not match or _OTHER_OPTION.search(rest):
        return None
    return Node("option", match[1] or match[2] or match[3], items=(_read(rest, depth),) if rest else ())


def _matrix(text: str, depth: int) -> Node | None:
    """A matrix as its rows, a column as a vector, a system of equations as a list."""
    match = _MATRIX.fullmatch(text)
    if not match or match[1] in ("v", "V"):
        return None
    rows = [row for row in match[3].split(r"\\") if row.strip()]
    if not match[2] and text[0] == "\\" and (match[1] != "array" or "=" in match[3]):
        lines = [re.sub("&(?=.*&)|&(?==)|(?<==)&", "", row) if "&=" in row or "=&" in row else row for row in rows]
        items = [_several("row", row.split("&"), depth) if "&" in row else _read(row, depth) for row in lines]
        return _joined(",", items)
    if all("&" not in row for row in rows):
        return _several("()", rows, depth)
    return Node("matrix", items=tuple(_several("row", row.split("&"), depth) for row in rows))


def _list(text: str, depth: int) -> Node | None:
    """Parts between ; or, and, or a comma, outside of brackets."""
    for joints in ((";",), ("⟪or⟫",), ("⟪and⟫", ",")):
        parts, found = split_at(text, frozenset(joints))
        if not found:
            continue
        if not (parts[0] and parts[-1]) and "⟪" in found[0] + found[-1]:
            return Node("words", text)
        kind = "," if {",", ";"} & {*found} else joints[0].strip("⟪⟫")
        node = _several(kind, [part for part in parts if part.strip(" ,;")], depth)
        names = {item.text for item in node.items}
        if kind != "and" and {item.kind for item in node.items} == {"set"} and len(names) == 1:
            return _union_of(node.items)
        return node if len(node.items) > 1 else node.items[0]
    return None


def _union_of(items: tuple[Node, ...]) -> Node:
    parts = (part for item in items for part in (item.items if item.kind == "set" else (item,)))
    return Node("set", next((item.text for item in items if item.text), ""), items=tuple(parts))


def _relation(text: str, depth: int) -> Node | None:
    sides, signs = split_at(text, SIGNS)
    if signs and not sides[0] and signs[0] in ("=", r"\approx"):
        return _read(text[text.index(signs[0]) + len(signs[0]) :], depth)
    if not signs or not all(sides[1:]):
        return Node("words", text) if signs else None
    if signs == ["="] and _VARIABLE.fullmatch(sides[1]) and number(sides[0]) is not None or {*signs} <= {*_FLIPPED}:
        signs, sides = [_FLIPPED.get(sign, sign) for sign in signs[::-1]], sides[::-1]  # 5 = x, x > 5
    items = tuple(_read(side, depth) if side else Node("words") for side in sides)
    if signs == ["="] and items[0].kind == items[1].kind == "()" and len(items[0].items) == len(items[1].items):
        return _joined("()", [Node("relation", "=", items=pair) for pair in zip(items[0].items, items[1].items)])
    return _inequality(signs, sides, items) or Node("relation", " ".join(signs), items=items)


def _inequality(signs: list[str], sides: list[str], items: tuple[Node, ...]) -> Node | None:
    """The set of the numbers that x > 2, 1 < x < 2, x != 2 or x in [1,2) says; None for other relations."""
    names = [bool(_VARIABLE.fullmatch(side)) for side in sides]
    if signs == [r"\in"] and names[0] and items[1].kind in ("set", *PAIRS):
        return _union_of(items[1:])._replace(text=sides[0])
    if signs == [r"\ne"] and names == [True, False]:
        return Node("set", sides[0], items=(Node("()", items=(_LOW, items[1])), Node("()", items=(items[1], _HIGH))))
    is_about_one = all(sides) and names in ([False, True, False], [True, False], [False, True])
    if not is_about_one or not {*signs} <= {"<", r"\le"}:
        return None
    low, left = (_LOW, "(") if names[0] else (items[0], "[" if signs[0] == r"\le" else "(")
    high, right = (_HIGH, ")") if names[-1] else (items[-1], "]" if signs[-1] == r"\le" else ")")
    return Node("set", sides[names.index(True)], items=(Node(left + right, items=(low, high)),))


def _union(text: str, depth: int) -> Node | None:
    parts, found = split_at(text, frozenset([r"\cup"]))
    items = _several("", parts, depth).items if found else ()
    is_known = all(item.kind in ("set", "{}", *PAIRS) for item in items)
    return None if not found else _union_of(items) if is_known else Node("words", text)


def _bracket(text: str, depth: int) -> Node | None:
    """A set, a pair or an interval, a vector; an expression in brackets is that expression."""
    outwards = re.fullmatch(r"([\[\]])([^()\[\]]*,[^()\[\]]*)([\[\]])", text)
    if outwards:  # ]2,5[ is (2,5)
        text = "(["[outwards[1] == "["] + outwards[2] + ")]"[outwards[3] == "]"]
    found = _BRACKETS.fullmatch(text)
    if not found or not _whole(text, found[1].strip(), found[3].strip()) or (found[1] == r"\{") != (found[3] == r"\}"):
        return None
    pair, inside = re.sub(r"\\[lr]angle ?", "|", found[1] + found[3]).replace("\\", ""), found[2].strip()
    if pair == "{}":
        return _braces(text, inside, depth)
    items, commas = split_at(inside, frozenset(",;"))
    if not commas:
        return _read(inside, depth) if pair in ("()", "[]") else None
    if not all(items) or len(items) != 2 and pair not in ("()", "[]", "||"):
        return Node("words", text)
    node = _several("()" if pair == "||" or pair == "[]" and len(items) > 2 else pair, items, depth)
    is_interval = pair in ("(]", "[)") or len(items) == 2 and not {_LOW, _HIGH}.isdisjoint(node.items)
    return Node("set", items=(node,)) if is_interval else node


def _braces(text: str, inside: str, depth: int) -> Node:
    """A set by its items, or by the condition that it says: {x | x > 2}."""
    parts, bars = split_at(inside, frozenset("|:"))
    if bars:
        name, condition = parts[0].removesuffix(r"\in\mathbb{R}"), _read(parts[1], depth)
        is_said = len(parts) == 2 and condition.kind == "set" and condition.text == name
        return condition._replace(text="") if is_said else Node("words", text)
    items = split_at(inside, frozenset(",;"))[0]
    if any(item.startswith("\\{") for item in items):
        return Node("words", text)
    node = _several("{}", [item for item in items if item], depth)
    return node.items[0] if len(node.items) == 1 and node.items[0].kind == "value" else node


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
        return Node("words" if not text or ":" in text else "value", text)
    front = re.fullmatch(r"([+-]?)⟦([^⟧]*)⟧([^⟦⟧]+(?:⟦[^⟧]*⟧)?)", text)
    if front and front[2].lower().strip(".") in CURRENCY:
        rest = _quantities(front[1] + front[3])
        return Node("value", rest.text, rest.unit or unit(front[2])) if rest.kind == "value" else Node("words", text)
    pieces = re.findall(r"([^⟦⟧]+)⟦([^⟧]+)⟧", text)
    values = [_value(value.strip(" ,"), name.strip(" ,.")) for value, name in pieces]
    if "".join(f"{value}⟦{name}⟧" for value, name in pieces) != text or not all(values):
        return Node("words", text)
    return values[0] if len(values) == 1 else Node("+", items=tuple(values))  # type: ignore[arg-type,return-value]


def _value(latex: str, name: str) -> Node | None:
    scale = name[:1] if name[:1] in SCALES else name.partition(" ")[0]
    size = SCALES.get(scale.lower().removesuffix("s"))
    name = name[len(scale) :].strip() if size else name
    if name and unit(name) is None:
        return None
    return Node("value", rf"({latex})\cdot {size}" if size else latex, unit(name) if name else None)

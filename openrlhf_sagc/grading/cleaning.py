r"""Answers in one spelling, in time that grows with their length: LaTeX without its looks, words in marks, as `3⟦hours⟧`
and `1⟪or⟫2`."""

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

LISTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_UNITS = {name: names.split("=")[0] for names in LISTS["units"].split() for name in names.split("=")}
_BESIDE, _WHICH, _FUNCTIONS = (frozenset(LISTS[name].split()) for name in ("beside", "which", "functions"))
LEAD, SAYS, CURRENCY = (frozenset(LISTS[name].split()) for name in ("lead", "says", "currencies"))
PHRASES = {same: line.split("; ")[0] for line in LISTS["phrases"].strip().splitlines() for same in line.split("; ")}
SCALES = {word: int(factor) for word, factor in (pair.split("=") for pair in LISTS["scales"].split())}
_WORDS = {*LEAD, *SAYS, *_BESIDE, *_WHICH, *LISTS["words"].split()}
_SIGNS = {word[0]: rf"\{word[1:]} " for word in LISTS["signs"].split()}
_SIGNS |= dict.fromkeys("⟦⟧⟪⟫“”‘«»\u200b\ufeff", "") | dict.fromkeys("−–‐‑", "-") | dict.fromkeys("°º˚", r"^\circ ")
_SIGNS |= {sign: rf" \frac{{{p}}}{{{q}}}" for sign, p, q in zip("½⅓⅔¼¾⅕⅙⅛", "11213111", "23344568")}
_SIGNS |= {"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "∣": "|", "、": ", ", "。": ".", "’": "'"}
_TRANSLATION = str.maketrans(_SIGNS)
_RAISED = re.compile(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣʸᵏᵐᵃᵇᶜᵈᵉᵗʲʳˢ]+)|[₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₖₙₘₚₛₜᵢⱼ]+")
_COMMANDS = {name: rf"\{to} " if to.isalpha() else to for name, to in re.findall(r"(\w+):(\S*)", LISTS["commands"])}
_TEXT = (
    r"\\(text(?:bf|it|rm|sf|tt|sc|up|normal)?|math(?:rm|bf|it|sf|tt)|[mh]box|operatorname|boldsymbol|bm|pmb|ensuremath|underline)"
    r"\*?\s*\{([^{}]*)\}"
)
_JOINTS = dict(pair.split("=") for pair in LISTS["joints"].split())
_CONNECTIVE = rf"⟦({'|'.join(_JOINTS)})⟧(?! *⟦(?:{LISTS['amounts']})⟧)"
_WORD = r"[^\W\d_]+(?:[.'-][^\W\d_]+)*"
_NUMBER = re.compile(
    r"(?P<decimal>[+-]?(?:\d+\.?\d*|\.\d+))(?:[eE](?P<e>[+-]?\d{1,3})|\\(?:times|cdot) ?10\^\{?(?P<ten>[+-]?\d{1,3})\}?)?"
    r"|(?P<sign>[+-]?)(?P<whole>\d+(?= ?\\frac| \d+/))? ?(?:\\frac ?\{(?P<p>\d+)\}\{(?P<q>\d+)\}|(?P<a>\d+)/(?P<b>\d+))"
)
_OPEN, _CLOSE = set(r"( [ \{ \langle { \lfloor \lceil".split()), set(r") ] \} \rangle } \rfloor \rceil".split())
_TOKEN = re.compile(r"⟦[^⟧]*⟧|⟪[^⟫]*⟫|\\[A-Za-z]+|\\.|.", re.DOTALL)


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """(token, where it begins, how deep in braces and brackets it stands); a bracket stands outside of itself."""
    depth = 0
    for match in _TOKEN.finditer(text):
        depth -= match[0] in _CLOSE
        yield match[0], match.start(), depth
        depth += match[0] in _OPEN


def spelled_out(answer: str) -> str:
    """The answer with LaTeX for signs that stand for some of it, which may make it longer."""
    text = _RAISED.sub(lambda run: f"{'^' if run[1] else '_'}{{{unicodedata.normalize('NFKC', run[0])}}}", answer)
    text = re.sub(r"√ ?(\d+)", r"\\sqrt{\1}", text)
    return unicodedata.normalize("NFKC", text.translate(_TRANSLATION)).translate(_TRANSLATION)


def cleaned(answer: str) -> str:
    """The answer in the one spelling; equal texts are equal answers."""
    text = spelled_out(answer)
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z]{2})", r"\\", text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    ends = None
    while text != ends:
        ends, text = text, text.strip(" ,;:").removeprefix("\\\\").removesuffix("\\\\")
        text = text if text.endswith("..") else text.removesuffix(".")
    return text


def _in_text(match: re.Match) -> str:
    """What a text command holds, its words marked; one letter is a symbol, or the unit behind a number."""
    style, content = match[1], match[2].strip()
    if content in _FUNCTIONS and not unit(content):
        return rf"\{content} "
    if re.fullmatch("[A-Za-z]", content):
        before = match.string[: match.start()].rstrip(r" \,;~")[-1:]
        is_unit = "bf" not in style and style[0] in "tm" and before.isdigit() and unit(content)
        return f"⟦{content}⟧" if is_unit else f" {content} "
    if not style.startswith(("text", "mbox", "mathrm", "hbox", "operatorname")):
        return f" {match[2]} "
    words = rf"\\[A-Za-z]+|\b[A-HJ]\b|({_WORD}\.?)"
    return f" {re.sub(words, lambda run: f'⟦{run[1]}⟧' if run[1] else run[0], match[2].replace('$', ' '))} "


def _plain_word(match: re.Match) -> str:
    r"""A run of letters outside of text: a word or unit is marked, `sin` is a function, and `xy` a product."""
    run = match[0]
    if run[0] in "⟦\\":
        return run
    if run in _FUNCTIONS and not unit(run):
        return rf"\{run} "
    before = match.string[: match.start()].rstrip(" \\")[-1:]
    if unit(run) and (before.isdigit() or before in tuple(")}]⟧")) and (len(run) > 1 or not run.isascii()):
        return f"⟦{run}⟧"
    is_long = len(run) > 2 or not unit(run)
    return f"⟦{run}⟧" if is_word(run) and is_long and (run.isalpha() or re.search(r"\.|\w{3}", run)) else run


def _joined(match: re.Match) -> str:
    """1,234 without its separators, unless it stands in a pair: (1,234)."""
    before = match.string[: match.start()]
    is_pair = "{" not in match[0] and "," in match[0] and re.search(r"[(\[][^()\[\]]*$", before[-30:])
    return match[0] if is_pair and not re.search(r",\s", match.string) else re.sub(r"[, {}]", "", match[0])


def _repeating(match: re.Match) -> str:
    r"""The fraction that 0.1\overline{6} or 0.1(6) is."""
    whole, fixed, period = match[1] or "0", match[2], match[3] or match[4]
    ninths = int("9" * len(period) + "0" * len(fixed))
    value = Fraction(int(whole + fixed + period) - int(whole + fixed), ninths)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


_RULES = [  # in this order: (pattern, what stands for it)
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=[\w)}])\*\*(?=[\w({-])", "^"),
        (r", *\\! *", "{,}"),
        (r"\{([^{}\\]*)\\over ([^{}\\]*)\}", r"\\frac{\1}{\2}"),
        (r"\{([^{}\\]*)\\choose ([^{}\\]*)\}", r"\\binom{\1}{\2}"),
        (r"\\log_(\w) (\d+)(?![\w.^{(\\!/])", r"\\log_\1(\2)"),
        (r"(?<!\\)\\[()\[\]]|\*\*+", " "),
        (r"!=|\\not\s*=", r"\\ne "),
        (r">=|=>", r"\\ge "),
        (r"<=|=<", r"\\le "),
        (r"\\(?:tag|label|color|textcolor|hspace|vspace|phantom)\*?\s*\{[^{}]*\}|\\(?:left|right)\s*\.|`+", " "),
        (_TEXT, _in_text),
        (_TEXT, _in_text),  # in another
        (r"\\([A-Za-z]+) ?", lambda match: _COMMANDS.get(match[1], rf"\{match[1]} ")),
        (r"⟦[^⟧]*⟧|\\(%)", lambda match: match[1] or match[0]),
        (r"(?:(?<![A-Za-z])(?:US|HK|A|C))?\\\$(?![^⟦⟧]*⟧)", "⟦$⟧"),
        (r"(?<!⟦)\$", ""),
        (r"(?<!⟦)([€₹₩¥₽₱₪₫฿₺₴¢£%])", r"⟦\1⟧"),
        (r"\bRs\b\.?(?![^⟦⟧]*⟧)", "⟦Rs⟧"),
        (r"(?<!\\)(?:\\[,;:>/ ]|~)|\s", " "),
        (r"(?<!\\)\\!", ""),
        (rf"⟦[^⟧]*⟧|\\(?:begin|end) *\{{[^{{}}]*\}}|\\[A-Za-z]+|{_WORD}", _plain_word),
        (r"\^ *\{? *(?:\\circ|⟦o⟧) *\}?|\\degree ", "⟦°⟧"),
        (r"⟦°⟧ ?([CF])(?![A-Za-z])", r"⟦°\1⟧"),
        (r"\\frac *\{ *⟦([^⟧]*)⟧ *\} *\{ *⟦?(\w+)⟧? *\}", r"⟦\1/\2⟧"),
        (_CONNECTIVE, lambda match: f"⟪{_JOINTS[match[1]]}⟫"),
        (r"⟧ */ *([gmshL])(?![A-Za-z])", r"/\1⟧"),
        (r"⟧ */ *⟦", "/"),
        (r"⟧ *(?:\\cdot )? *⟦", " "),
        (r"⟧ *\^ *\{? *(-? *\d)(?: *\})?", r"^\1⟧"),
        (r"(?<=\d) *(?:\^ *\{? *)?⟦(?:st|nd|rd|th)⟧(?: *\})?(?! *\d)", ""),
        (r"\*", r"\\cdot "),
        (
            r"(?<![\d.,])[1-9]\d{0,2}(?:(?: \d{3})+|(?:\.\d{3})+),\d+(?![\d,])",
            lambda match: re.sub("[ .]", "", match[0]).replace(",", "."),
        ),
        (r"(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.,])", lambda match: match[0].replace(".", "")),
        (r"(?<![\d.,{}])(?<!\d )[1-9]\d{0,2}(?:(?:(?:,|\{,\})\d{3})+|(?: \d{3})+)(?![\d{]|,\d| \d)", _joined),
        (r"(?<=\d)\{,\}(?=\d)", "."),  # a decimal comma
        (
            r"(?<![\d.,])(\d*)\.(\d{0,20})(?:\\(?:overline|bar|dot) *\{?(\d{1,20})\}?(?!\d)|\((\d{1,20})\)(?![\d(]))",
            _repeating,
        ),
        (r"(\\[A-Za-z]+) (?=[A-Za-z])", "\\1\0"),  # this blank stays, and those between digits
        (r"[⟦⟪][^⟧⟫]*[⟧⟫]|(?<![\d.]) | (?![\d.])", lambda match: match[0].strip(" ")),
        (r"\0", " "),
        (r"([_^])\{(\w)\}(?!\d)", r"\1\2"),
        (r"(\\sqrt(?:\[\d+\])?) ?(\d|[a-z])", r"\1{\2}"),
        (r"\\(frac|binom) ?(\d|[a-z]|\\pi)(?=[\d{a-z\\])", r"\\\1{\2}"),  # \frac12
        (r"(\\(?:frac|binom)\{(?:[^{}]|\{[^{}]*\})*\}) ?(\d|[a-z]|\\pi)", r"\1{\2}"),
        (r"\((⟦[^⟧]*⟧)\)$", r"\1"),
        (r"\\mathbb ?([A-Z])", r"\\mathbb{\1}"),
        (r"\\pmod ?(\d+|[a-z])", r"\\pmod{\1}"),
    )
]


def number(text: str) -> Fraction | None:
    r"""The number that the text is, exactly: 12, -0.5, 1e3, 3/4, \frac{3}{4}, 1\frac{1}{2}; None if it is none of these."""
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    if match["decimal"]:
        return Fraction(match["decimal"]) * Fraction(10) ** int(match["e"] or match["ten"] or 0)
    below = int(match["q"] or match["b"])
    value = (Fraction(int(match["p"] or match["a"]), below) + int(match["whole"] or 0)) if below else None
    return -value if value and match["sign"] == "-" else value


def _known(word: str) -> str | None:
    forms = [word]
    if len(word) > 2 or word in ("KG", "CM", "KM"):  # W is no w, nor MW mW
        forms += [word.lower(), re.sub("ies$", "y", word.lower())]
    if len(word) > 3:
        forms += [word.lower().removesuffix("s"), word.lower().removesuffix("es")]
    return next((_UNITS[form] for form in forms if form in _UNITS), None)


def unit(text: str) -> str | None:
    """The unit or counted thing that the text names wholly (km/h, square feet, cm^2, red apples, %), in one spelling; else None."""
    parts = []
    for part in re.split(r"\s*(?:/|\bper\b|每)\s*", text.strip(" .").replace("per cent", "percent")):
        names, known, power = [], False, ""
        for word in re.split(r"[\s·]+|\\cdot ?", part):
            name, _, raised = word.rstrip(".").partition("^")
            lower, found = name.lower(), _known(name)
            if lower in ("square", "sq", "cubic", "cu") and name != part:
                power = "^2" if lower[0] == "s" else "^3"
            elif lower in _WHICH:
                names.append(lower)
            elif found and re.fullmatch(r"\{?-?\d\}?|", raised):
                names, known = [*names, found + ("^" + raised.strip("{}") if raised else power)], True
            elif lower not in _BESIDE or lower == "more" and known:  # 5 more hours, not 5 times more
                return None
        if not known:
            return None
        parts.append(" ".join(sorted(names)))
    return "/".join(parts)


def is_word(run: str) -> bool:
    """Whether a run of letters in mathematics is a word and no product of symbols."""
    looks = len(run) > 3 or not run.isascii() or re.fullmatch("[A-Z][a-z]{2}|[IVX]{2,}", run)
    return bool(looks) or len(run) > 1 and (run.lower() in _WORDS or _known(run) is not None)

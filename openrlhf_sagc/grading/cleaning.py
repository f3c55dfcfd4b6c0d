r"""Answers in one spelling, in time that grows with their length: LaTeX without its looks, words in marks, as `3⟦hours⟧`."""

import re
import unicodedata
from collections.abc import Iterator
from fractions import Fraction

from openrlhf_sagc.grading.words import is_word, unit

_FUNCTIONS = set(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp max min gcd lcm det arg".split()
)
_SIGNS = """
αalpha βbeta γgamma δdelta εepsilon ζzeta ηeta θtheta κkappa λlambda μmu νnu ξxi πpi ρrho σsigma τtau φphi χchi ψpsi ωomega ΓGamma ΔDelta ΘTheta
×times ÷div ∞infty √sqrt ≤le ⩽le ≥ge ⩾ge ≠ne ≈approx ±pm ∪cup ∩cap ∈in ∅emptyset →to ⇒Rightarrow ∨vee ⟨langle ⟩rangle ·cdot ⋅cdot ∙cdot ∗cdot …dots
"""
_SYMBOLS = {word[0]: rf"\{word[1:]} " for word in _SIGNS.split()} | dict.fromkeys("⟦⟧“”‘«»\u200b\ufeff", "")
_SYMBOLS |= {sign: rf" \frac{{{p}}}{{{q}}}" for sign, p, q in zip("½⅓⅔¼¾⅕⅙⅛", "11213111", "23344568")}
_SYMBOLS |= dict.fromkeys("−–‐‑", "-") | dict.fromkeys("°º˚", r"^\circ ")
_SYMBOLS |= {"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "∣": "|", "、": ", ", "。": ".", "’": "'"}
_TRANSLATION = str.maketrans(_SYMBOLS)
_RAISED = re.compile(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣʸᵏᵐᵃᵇᶜᵈᵉᵗʲʳˢ]+)|[₀₁₂₃₄₅₆₇₈₉ₐₑₒₓₖₙₘₚₛₜᵢⱼ]+")
_SAME = r"""
leq:le leqslant:le geq:ge geqslant:ge neq:ne dfrac:frac tfrac:frac cfrac:frac dbinom:binom tbinom:binom varnothing:emptyset ast:cdot cdotp:cdot
bigcup:cup smallsetminus:setminus backslash:setminus ldots:dots cdots:dots longrightarrow:to rightarrow:to isin:in overrightarrow:vec lg:log
varphi:phi varepsilon:epsilon imath:i tg:tan ctg:cot arctg:arctan lbrace:\{ rbrace:\} mid:| vert:| lvert:| rvert:| lt:< gt:> colon::
euro:⟦€⟧ pounds:⟦£⟧ yen:⟦¥⟧ textdollar:⟦$⟧ percent:% lbrack:[ rbrack:] lparen:( rparen:)
displaystyle: textstyle: scriptstyle: left: right: middle: big: Big: bigg: Bigg: bigl: bigr: Bigl: Bigr: limits: nolimits: nonumber: notag: hfill:
rm: bf: it: quad: qquad: space: newline: large: Large: LARGE: huge: small: normalsize: boldmath: blacksquare: square: checkmark: noindent:
"""
_COMMANDS = {
    name: rf"\{to} " if to.isalpha() else to for name, _, to in (pair.partition(":") for pair in _SAME.split())
}
_DROPPED = re.compile(
    r"\\(?:tag|label|color|textcolor|hspace|vspace|phantom)\*?\s*\{[^{}]*\}|\\(?:left|right)\s*\.|`+"
)
_STYLES = "mbox|hbox|operatorname|boldsymbol|bm|pmb|ensuremath|underline"
_TEXT = re.compile(rf"\\(text(?:bf|it|rm|sf|tt|sc|up|normal)?|math(?:rm|bf|it|sf|tt)|{_STYLES})\*?\s*\{{([^{{}}]*)\}}")
_RUN = re.compile(r"⟦[^⟧]*⟧|\\(?:begin|end) *\{[^{}]*\}|\\[A-Za-z]+|[^\W\d_]+(?:[.'-][^\W\d_]+)*")
_WORD = re.compile(r"\\[A-Za-z]+|[^\W\d_]+(?:[.'-][^\W\d_]+)*\.?")
_MONEY = re.compile(r"⟦[^⟧]*⟧|(?:(?<![A-Za-z])(?:US|HK|A|C))?\\\$|\$|[€₹₩¥₽₱₪₫฿₺₴¢£]|\\?%|\bRs\b\.?")
_THOUSANDS = re.compile(
    r"(?<![\d.,{}])(?<!\d )[1-9]\d{0,2}(?:(?:(?:,|\{,\})\d{3})+|(?: \d{3})+)(?![\d{]|,\d| \d)"  # 1,234 and 1 234
    r"|(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.,])"  # 1.234.567
)
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(?<!\d )([1-9]\d{0,2}(?:(?: \d{3})+|(?:\.\d{3})+)),(\d+)(?![\d,])")  # 1.234,5
_REPEATING = re.compile(
    r"(?<![\d.,])(\d*)\.(\d*)(?:\\(?:overline|bar|dot) *\{?(\d+)\}?(?:\\dot *\{?(\d)\}?)?(?!\d)|\((\d+)\)(?![\d(])|\\dots|\.\.\.+)"
)
_NUMBER = re.compile(
    r"(?P<decimal>[+-]?(?:\d+\.?\d*|\.\d+))(?:[eE](?P<e>[+-]?\d{1,3})|\\(?:times|cdot) ?10\^\{?(?P<ten>[+-]?\d{1,3})\}?)?"
    r"|(?P<sign>[+-]?)(?P<whole>\d+(?= ?\\frac| \d+/))? ?(?:\\frac ?\{(?P<p>\d+)\}\{(?P<q>\d+)\}|(?P<a>\d+)/(?P<b>\d+))"
)
OPEN, CLOSE = set(r"( [ \{ \langle { \lfloor \lceil".split()), set(r") ] \} \rangle } \rfloor \rceil".split())
_TOKEN = re.compile(r"⟦[^⟧]*⟧|\\[A-Za-z]+|\\.|.", re.DOTALL)


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """(token, where it begins, how deep in braces and brackets it stands); a bracket stands outside of itself."""
    depth = 0
    for match in _TOKEN.finditer(text):
        depth -= match[0] in CLOSE
        yield match[0], match.start(), depth
        depth += match[0] in OPEN


def spelled_out(answer: str) -> str:
    """The answer with LaTeX for signs that stand for some of it, which may make it longer."""
    text = _RAISED.sub(
        lambda match: f"{'^' if match[1] else '_'}{{{unicodedata.normalize('NFKC', match[0])}}}", answer
    )
    text = re.sub(r"√ ?(\d+)", r"\\sqrt{\1}", text)
    return unicodedata.normalize("NFKC", text.translate(_TRANSLATION)).translate(_TRANSLATION)


def cleaned(answer: str) -> str:
    """The answer in the one spelling; equal texts are equal answers."""
    text = re.sub(r"(?<=[\w)}])\*\*(?=[\w({-])", "^", spelled_out(answer))
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z]{2})", r"\\", text)
    for pattern, replacement in _FIRST:
        text = re.sub(pattern, replacement, text)
    text = _TEXT.sub(_in_text, _TEXT.sub(_in_text, _DROPPED.sub(" ", text)))
    text = re.sub(r"\\([A-Za-z]+) ?", lambda match: _COMMANDS.get(match[1], rf"\{match[1]} "), text)
    text = _MONEY.sub(_money, text)
    text = re.sub(r"\\\\|\\[,;:>/ !]|[~\s]", lambda match: {r"\\": r"\\", r"\!": ""}.get(match[0], " "), text)
    text = _RUN.sub(_plain_word, text)
    for pattern, replacement in _UNITS:
        text = re.sub(pattern, replacement, text)
    text = _numbers(re.sub(" +", " ", text).replace("*", r"\cdot "))
    text = re.sub(r"⟦[^⟧]*⟧|(\\[A-Za-z]+)? +", _blank, text)
    for pattern, replacement in _LAST:
        text = re.sub(pattern, replacement, text)
    ends = None
    while text != ends:
        ends, text = text, text.strip(" ,;:").removeprefix("\\\\").removesuffix("\\\\")
        text = text if text.endswith("..") else text.removesuffix(".")
    return text


_FIRST = (
    (r", *\\! *", "{,}"),
    (r"\{([^{}\\]*)\\over ([^{}\\]*)\}", r"\\frac{\1}{\2}"),
    (r"\{([^{}\\]*)\\choose ([^{}\\]*)\}", r"\\binom{\1}{\2}"),
    (r"\\log_(\w) (\d+)(?![\w.^{(\\!/])", r"\\log_\1(\2)"),
    (r"(?<!\\)\\[()\[\]]|\*\*+", " "),
    (r"!=|\\not\s*=", r"\\ne "),
    (r">=|=>", r"\\ge "),
    (r"<=|=<", r"\\le "),
)
_UNITS = (
    (r"\^ *\{? *(?:\\circ|⟦o⟧) *\}?|\\degree ", "⟦°⟧"),
    (r"⟦°⟧ ?([CF])(?![A-Za-z])", r"⟦°\1⟧"),
    (r"\\frac *\{ *⟦([^⟧]*)⟧ *\} *\{ *⟦?(\w+)⟧? *\}", r"⟦\1/\2⟧"),
    (r"⟧ */ *([gmshL])(?![A-Za-z])", r"/\1⟧"),
    (r"⟧ */ *⟦", "/"),
    (r"⟧ *(?:\\cdot )? *⟦", " "),
    (r"⟧ *\^ *\{? *(-? *\d)(?: *\})?", r"^\1⟧"),
    (r"(?<=\d) *(?:\^ *\{? *)?⟦(?:st|nd|rd|th)⟧(?: *\})?(?! *\d)", ""),
)
_LAST = (
    (r"([_^])\{(\w)\}", r"\1\2"),
    (r"(\\sqrt(?:\[\d+\])?) ?(\d|[a-z])", r"\1{\2}"),
    (r"\\(frac|binom) ?(\d|[a-z]|\\pi)(?=[\d{a-z\\])", r"\\\1{\2}"),  # \frac12
    (r"(\\(?:frac|binom)\{(?:[^{}]|\{[^{}]*\})*\}) ?(\d|[a-z]|\\pi)", r"\1{\2}"),
    (r"\((⟦[^⟧]*⟧)\)$", r"\1"),
    (r"\\mathbb ?([A-Z])", r"\\mathbb{\1}"),
    (r"\\pmod ?(\d+|[a-z])", r"\\pmod{\1}"),
)


def _money(match: re.Match) -> str:
    return (
        ""
        if match[0] == "$"
        else match[0] if match[0][0] == "⟦" else f"⟦{'Rs' if match[0][0] == 'R' else match[0][-1]}⟧"
    )


def _in_text(match: re.Match) -> str:
    """What a text command holds, its words marked; one letter is a symbol, or the unit behind a number."""
    content, style = match[2].strip(), match[1]
    if content in _FUNCTIONS and not unit(content):
        return rf"\{content} "
    if re.fullmatch("[A-Za-z]", content):
        before = match.string[: match.start()].rstrip(r" \,;~")[-1:]
        is_unit = "bf" not in style and style[0] in "tm" and before.isdigit() and unit(content)
        return f"⟦{content}⟧" if is_unit else f" {content} "
    if not style.startswith(("text", "mbox", "mathrm", "hbox", "operatorname")):
        return f" {match[2]} "
    return (
        " "
        + _WORD.sub(
            lambda run: run[0] if run[0][0] == "\\" or run[0] in "ABCDEFGHJ" else f"⟦{run[0]}⟧",
            match[2].replace("$", " "),
        )
        + " "
    )


def _plain_word(match: re.Match) -> str:
    r"""A run of letters outside of text: a word or unit is marked, `sin` is a function, and `xy` a product."""
    run = match[0]
    if run[0] in "⟦\\":
        return run
    if run in _FUNCTIONS and not unit(run):
        return rf"\{run} "
    before = match.string[: match.start()].rstrip(" \\")[-1:]
    is_unit = unit(run) and (before.isdigit() or before in tuple(")}]⟧")) and (len(run) > 1 or not run.isascii())
    is_word_here = (
        is_word(run) and (len(run) > 2 or not unit(run)) and (run.isalpha() or "." in run or re.search(r"\w{3}", run))
    )
    return f"⟦{run}⟧" if is_unit or is_word_here else run


def _blank(match: re.Match) -> str:
    """A blank is kept between digits, and behind a command that a letter follows."""
    if match[0][0] == "⟦":
        return match[0]
    before, after = match.string[match.start() - 1 : match.start()], match.string[match.end() : match.end() + 1]
    if match[1]:
        return match[1] + " " * (after.isascii() and after.isalpha())
    return " " * ((before.isdigit() or before == ".") and (after.isdigit() or after == "."))


def _numbers(text: str) -> str:
    """Numbers without thousands separators, with a decimal point, and fractions for repeating decimals."""
    text = re.sub(r"(?<=\d) *\{ *, *\} *(?=\d)", "{,}", text)
    text = _DECIMAL_COMMA.sub(lambda match: re.sub("[ .]", "", match[1]) + "." + match[2], text)
    depths, is_point = {at: depth for _, at, depth in tokens(text)}, not re.search(r",\s", text)

    def joined(match: re.Match) -> str:
        is_list = is_point and depths.get(match.start()) and "," in match[0] and "{" not in match[0]  # (1,000)
        return match[0] if is_list else re.sub(r"[,. {}]", "", match[0])

    text = re.sub(r"(?<=\d)\{,\}(?=\d)", ".", _THOUSANDS.sub(joined, text))
    return _REPEATING.sub(_repeating, text)


def _repeating(match: re.Match) -> str:
    r"""The fraction that 0.1\overline{6}, 0.1\dot6, 0.1(6) or 0.1666... is; the text itself if none repeats."""
    whole, fixed, period = match[1] or "0", match[2], (match[3] or "") + (match[4] or "") or match[5]
    if not period:
        found = re.fullmatch(r"(\d*?)(\d{1,6}?)\2{1,}", fixed)
        if not found or len(fixed) - len(found[1]) < 3:
            return match[0]
        fixed, period = found[1], found[2]
    if len(fixed) + len(period) > 50:
        return match[0]
    value = Fraction(int(whole + fixed + period) - int(whole + fixed), (10 ** len(period) - 1) * 10 ** len(fixed))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


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


def rounded(text: str, value) -> bool:
    """Whether the text is a decimal of 6 significant digits or more that was rounded or cut from the endless value."""
    match = re.fullmatch(r"[+-]?(\d*)\.(\d+)", text)
    if not match or len((match[1] + match[2]).lstrip("0")) < 6:
        return False
    decimal, last = Fraction(text), Fraction(1, 10 ** len(match[2]))
    is_cut = decimal * value >= 0 and 0 <= abs(value) - abs(decimal) < last
    return bool(value * 10**40 % 1 != 0 and (is_cut or abs(decimal - value) <= last / 2))

r"""Answers in one spelling: LaTeX without its looks, with words in marks. Pure text, in time that grows with its length.

`\text{3 hours}`, `3\mathrm{hours}` and `3 hours` all become `3⟦hours⟧`. What remains outside the marks is LaTeX, in which
a gap is one blank and stands only between digits.
"""

import re
import unicodedata
from fractions import Fraction

from openrlhf_sagc.grading.braces import braced, tokens
from openrlhf_sagc.grading.words import BEHIND_A_BLANK, GREEK, LEAD_WORDS, ONE_LETTER, UNITS, VOCABULARY

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp sqrt max min gcd lcm det arg deg mod".split()
)
_ALSO_UNITS = frozenset(["min", "deg", "sec"])
_FRACTIONS = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅙": (1, 6), "⅛": (1, 8)}
_GREEK = dict(zip("αβγδεζηθκλμνξπρστφχψωΓΔΘΛΞΠΣΦΨΩ", GREEK))
_SYMBOLS = {
    **{sign: rf" \frac{{{p}}}{{{q}}}" for sign, (p, q) in _FRACTIONS.items()},
    **{letter: rf"\{name} " for letter, name in _GREEK.items()},
    **dict.fromkeys("−–‐‑﹣－", "-"),
    **dict.fromkeys("×✕", r"\times "),
    **dict.fromkeys("·⋅∙∗", r"\cdot "),
    **dict.fromkeys("°º˚", r"^\circ "),
    **dict.fromkeys("⟦⟧", ""),
    **dict.fromkeys("“”‘’«»", ""),
    **{"÷": r"\div ", "∞": r"\infty ", "√": r"\sqrt", "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge "},
    **{"≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset "},
    **{"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}"},
    **{
        "→": r"\to ",
        "⇒": r"\Rightarrow ",
        "∨": r"\vee ",
        "∧": r"\wedge ",
        "∣": "|",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
    },
    **{"、": ", ", "，": ", ", "；": "; ", "。": ".", "：": ":", "％": "%", "£": "⟦£⟧", "\u200b": "", "\ufeff": ""},
}
_RAISED = re.compile(r"([⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ⁽⁾]+)|[₀₁₂₃₄₅₆₇₈₉]+")
_POWERS = re.compile(r"(?<=[\w)}])(?:\*\*| \*\* )(?:(-?\d+)(?![\d.])|(?=[\w({\\]))")  # x**2
_TRANSLATION = str.maketrans(_SYMBOLS)
_SAME = {  # commands of one meaning
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "lbrace": "{", "rbrace": "}", "dfrac": "frac",
    "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "varnothing": "emptyset", "ast": "cdot",
    "bigcup": "cup", "bigcap": "cap", "smallsetminus": "setminus", "backslash": "setminus", "ldots": "dots",
    "cdots": "dots", "longrightarrow": "to", "rightarrow": "to", "isin": "in", "lg": "log", "arcctg": "arccot", "ctg": "cot",
    "tg": "tan", "arctg": "arctan", "varphi": "phi", "varepsilon": "epsilon", "land": "wedge", "lor": "vee", "imath": "i",
}  # fmt: skip
_PLAIN = {
    "mid": "|", "vert": "|", "lvert": "|", "rvert": "|", "lt": "<", "gt": ">", "colon": ":", "euro": "⟦€⟧", "pounds": "⟦£⟧",
    "yen": "⟦¥⟧", "textdollar": "⟦$⟧", "texteuro": "⟦€⟧", "textsterling": "⟦£⟧", "EUR": "⟦€⟧", "percent": "%", "slash": "/",
    "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "thinspace": " ", "quad": " ", "qquad": " ", "space": " ",
    "enspace": " ", "newline": " ", "rupee": "⟦₹⟧", "dollar": "⟦$⟧", "times": r"\times ", "cdotp": r"\cdot ",
}  # fmt: skip
_LOOKS = frozenset(
    "displaystyle textstyle scriptstyle left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr limits "
    "nolimits nonumber notag hfill rm bf it sf tt cal Large large LARGE huge Huge small tiny normalsize boldmath strut qed "
    "blacksquare square checkmark noindent centering protect relax allowbreak nobreak mathstrut bm boldsymbol mathbf "
    "mathit underline uline mathsf pmb hbox".split()
)
_DROPPED = re.compile(
    r"\\(?:tag|label|color|hspace|vspace|phantom|hphantom|vphantom|textcolor|eqno|kern)\*?\s*\{[^{}]*\}"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|up|md|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|hbox)\*?\s*\{([^{}]*)\}"
)
_COMMAND = re.compile(r"\\([A-Za-z]+) ?")
_STYLE = re.compile(
    r"\\(?:vec|bm|boldsymbol|overrightarrow|underline|uline|pmb|mathit|mathsf|mathbf|mathop|hbox|ensuremath)\*?\s*\{([^{}]*)\}"
)
_GAP = re.compile(r"\\\\|\\[,;:>/ ]|~|[ \t\r\n\f\v]")
_BLANKS = re.compile(r"⟦[^⟧]*⟧|(\\[A-Za-z]+)? +")
_RUN = re.compile(r"⟦[^⟧]*⟧|\\(?:begin|end) *\{[^{}]*\}|\\[A-Za-z]+|[^\W\d_]+(?:[.'-][^\W\d_]+)*")
_LETTERS = re.compile(r"\\[A-Za-z]+|[^\W\d_]+(?:[.'-][^\W\d_]+)*\.?|(?<=[^\W\d_])\.")
_SIGNS = re.compile(r"(?:(?<![A-Za-z])(?:US|HK|NZ|A|C))?\\\$|\$|[€₹₩¥₽₱₪₫฿₺₴¢]|\\?%|\bRs\b\.?")
_JOIN = re.compile(r"⟧ *(/|\\cdot )? *⟦|⟧ *\^ *(?:\{ *)?(-? *\d)(?: *\})?")
_UNIT_FRACTION = re.compile(r"\\frac *\{ *⟦([^⟧]*)⟧ *\} *\{ *⟦([^⟧]*)⟧ *\}")
_LETTER_MARK = re.compile(r"⟦([A-Za-z])⟧")
_DEGREE = re.compile(r"\^ *\{? *\\circ *\}?|\^ *\{ *(?:⟦o⟧|o) *\}|\\degree ")
_PER = re.compile(r"⟦([^⟧]*)⟧/([gmshL])(?![A-Za-z])|(?<=[\d})]) *([gmL])/(s|h|min|L|mL|m)(?![A-Za-z])")
_ORDINAL = re.compile(r"(?<=\d) *(?:\^ *\{? *)?⟦(?:st|nd|rd|th)⟧(?: *\})?(?! *\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED = re.compile(r"(?<![\d.,])(?<!\d )[1-9]\d{0,2}(?: \d{3})+(?![\d,]| \d)(?:(?=\.)|(?!\.\d))")
_SPACED_COMMA = re.compile(r"(?<![\d.,])(?<!\d )([1-9]\d{0,2}(?: \d{3})+),(\d+)(?![\d,])")
_DOTTED = re.compile(
    r"(?<![\d.,])([1-9]\d{0,2}(?:\.\d{3})+),(\d+)(?![\d,])|(?<![\d.,])[1-9]\d{0,2}(?:\.\d{3}){2,}(?![\d.,])"
)
_BRACED_COMMA = re.compile(r"\{,\}")
_REPEATING = re.compile(
    r"(?<![\d.,])(\d*)\.(\d*)(?:\\(?:overline|bar|dot|overset\.)\s*\{?(\d+)\}?(?:\\dot\s*\{?(\d)\}?)?(?!\d)|\((\d+)\)(?![\d(])"
    r"|(?:\\dots|\.\.\.+|…))"
)


def _marked(word: str) -> str:
    return f"⟦{word}⟧"


def _in_text(match: re.Match) -> str:
    """What a text command holds, its words marked; one bold letter is a symbol."""
    content = match[1].strip()
    if content in FUNCTIONS and content not in _ALSO_UNITS:
        return rf"\{content} "
    if (
        len(content) == 1
        and content.isascii()
        and content.isalpha()
        and not (content in ONE_LETTER and match[0][5] != "b")
    ):
        return content
    return (
        " "
        + _LETTERS.sub(
            lambda run: run[0] if run[0][0] == "\\" else _marked(run[0]), match[1].replace("~", " ").replace("$", " ")
        )
        + " "
    )


def _plain_word(match: re.Match) -> str:
    r"""A run of letters outside of text: a word or unit is marked, `sin` is a function, and `xy` a product."""
    run = match[0]
    if run[0] in "⟦\\":
        return run
    if run in FUNCTIONS and run not in _ALSO_UNITS:
        return rf"\{run} "
    if len(run) == 2 and run.isupper() and run not in UNITS and run.casefold() not in ("am", "pm"):
        return run
    if len(run) == 2 and run != "Rs" and (run in UNITS or run.casefold() in ("am", "pm")) and run not in LEAD_WORDS:
        before = match.string[max(0, match.start() - 3) : match.start()].rstrip(" \\")
        return _marked(run) if before[-1:] and (before[-1].isdigit() or before[-1] in "})]⟧/$") else run
    is_word = len(run) > 3 or run.casefold() in VOCABULARY or re.fullmatch(r"[A-Z][a-z]{2}|[IVX]{2,}", run)
    return _marked(run) if is_word or not run.isascii() or not run.isalpha() else run


def _letter(match: re.Match) -> str:
    """The mark of one letter is a unit's behind a value, else a symbol."""
    before = match.string[: match.start()].rstrip()[-1:]
    return match[0] if before.isalnum() or before in tuple("})]!⟧") else match[1]


def _blank(match: re.Match) -> str:
    if match[0][0] == "⟦":
        return match[0]
    before, after = match.string[match.start() - 1 : match.start()], match.string[match.end() : match.end() + 2]
    if match[1]:
        return match[1] + " " * (after[:1].isascii() and after[:1].isalpha())
    return (
        " "
        if (before.isdigit() or before == "." and after[:1].isdigit())
        and (after[:1].isdigit() or after in BEHIND_A_BLANK)
        else ""
    )


def _command(match: re.Match) -> str:
    name = _SAME.get(match[1], match[1])
    if name in _LOOKS:
        return ""
    return _PLAIN.get(name) or rf"\{name} "


def _sign(match: re.Match) -> str:
    return "" if match[0] == "$" else _marked("Rs" if match[0][0] == "R" else match[0][-1])


def _joined(match: re.Match) -> str:
    return f"^{match[2].replace(' ', '')}⟧" if match[2] else "/" if match[1] == "/" else " "


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
    nines, zeros = 10 ** len(period) - 1, 10 ** len(fixed)
    value = Fraction(int(whole + fixed + period) - int(whole + fixed), nines * zeros)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _without_commas(match: re.Match) -> str:
    return re.sub("[, .]", "", match[0])


def _numbers(text: str) -> str:
    """Numbers in one spelling: no thousands separators, a decimal point, and fractions for repeating decimals."""
    text = re.sub(r",?\\!\s*", lambda match: "," if match[0][0] == "," else "", text)
    text = re.sub(r"(?<=\d)\s*\{\s*,\s*\}\s*(?=\d)", "{,}", text)
    text = re.sub(
        r"(?<![\d,{}])([1-9]\d{0,2})((?:\{,\}\d{3})+)(?![\d{])", lambda m: m[1] + m[2].replace("{,}", ""), text
    )
    text = _BRACED_COMMA.sub(".", text)
    text = _SPACED_COMMA.sub(lambda match: match[1].replace(" ", "") + "." + match[2], text)
    text = _SPACED.sub(_without_commas, text)
    text = _DOTTED.sub(
        lambda match: match[1].replace(".", "") + "." + match[2] if match[1] else match[0].replace(".", ""), text
    )
    text = _REPEATING.sub(_repeating, text)
    parts, start, inside = [], 0, 0
    for token, at, depth in tokens(text):  # 1,000 is a number, but (1,000) may be a point
        if token in ("(", "[", r"\{", r"\langle") and inside == 0:
            parts.append(_THOUSANDS.sub(_without_commas, text[start:at]))
            start = at
        inside += (token in ("(", "[", r"\{", r"\langle")) - (token in (")", "]", r"\}", r"\rangle"))
        inside = max(inside, 0)
        if token in (")", "]", r"\}", r"\rangle") and inside == 0:
            group = text[start : at + len(token)]
            parts.append(_THOUSANDS.sub(_without_commas, group) if re.search(r",\s", group) else group)
            start = at + len(token)
    return "".join(parts) + _THOUSANDS.sub(_without_commas, text[start:])


def spelled_out(answer: str) -> str:
    """The answer with LaTeX for signs that stand for some of it, which may make it longer."""
    text = _RAISED.sub(_raised, answer)
    return unicodedata.normalize("NFKC", text.translate(_TRANSLATION)).translate(_TRANSLATION)


def _raised(match: re.Match) -> str:
    return f"{'^' if match[1] else '_'}{{{unicodedata.normalize('NFKC', match[0])}}}"


def _power(match: re.Match) -> str:
    return f"^{{{match[1]}}}" if match[1] else "^"


def cleaned(answer: str) -> str:
    """The answer in the one spelling; equal texts are equal answers."""
    text = _POWERS.sub(_power, spelled_out(answer))
    text = re.sub(r"\\\\|\\[()\[\]]|\*\*+|`+", lambda match: match[0] if match[0] == r"\\" else " ", text)
    text = re.sub(r"\\q?quad(?=[a-z])", " ", text)
    text = re.sub(r"<=|=<", r"\\le ", re.sub(r">=|=>", r"\\ge ", re.sub(r"!=|\\not\s*=", r"\\ne ", text)))
    if r"\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z]{2})", r"\\", text)
    text = re.sub(r"\\(?:left|right)\s*\.", "", _DROPPED.sub(" ", text))
    text = re.sub(r"\\(?:vec|overrightarrow) ?([A-Za-z])(?![A-Za-z])", r" \1 ", text)
    text = re.sub(r"\\(?:vec|overrightarrow) ?\{ ?([A-Z]{2,}) ?\}", r"\\vec {{\1}}", text)
    text = _TEXT.sub(_in_text, _STYLE.sub(r" \1 ", text))
    text = _SIGNS.sub(_sign, _COMMAND.sub(_command, text))
    text = _GAP.sub(lambda match: match[0] if match[0] == r"\\" else " ", text)
    text = _RUN.sub(_plain_word, text)
    text = _PER.sub(lambda match: _marked(f"{match[1] or match[3]}/{match[2] or match[4]}"), text)
    text = re.sub(r"\{([^{}\\]*)\\over ([^{}\\]*)\}", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\{([^{}\\]*)\\choose ([^{}\\]*)\}", r"\\binom{\1}{\2}", text)
    text = _DEGREE.sub("⟦°⟧", text)
    text = re.sub(r"⟦°⟧ ?([CF])(?![A-Za-z])", r"⟦°\1⟧", text)
    text = _UNIT_FRACTION.sub(r"⟦\1/\2⟧", text)
    text = _LETTER_MARK.sub(_letter, _JOIN.sub(_joined, text))
    text = _numbers(_ORDINAL.sub("", re.sub(r" +", " ", text)).replace("*", r"\cdot "))
    text = _BLANKS.sub(_blank, text)
    text = re.sub(r"([_^])\{(\w)\}", r"\1\2", text)
    text = re.sub(r"\\sqrt(\d|[a-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\log_(\w) (\d+)(?![\w.^{(\\!/])", r"\\log_\1(\2)", text)
    text = re.sub(r"\\pmod ?(\d+|[a-z])", r"\\pmod{\1}", text)
    text = re.sub(r"(?<=[\d}])\((⟦[^⟧]*⟧)\)$", r"\1", text)
    return _ends(braced(text))


def _ends(text: str) -> str:
    r"""The text without punctuation and line breaks at its ends."""
    before = None
    while text != before:
        before = text
        text = text.lstrip(" ,;:").rstrip(" ,;:").removeprefix("\\\\").removesuffix("\\\\")
        text = text if text.endswith("..") else text.removesuffix(".")
    return text

"""Final answers of responses to mathematical problems, and whether two are plainly equal. No algebra: see algebra.py."""

import re
from fractions import Fraction

MAX_CHARACTERS = 1000  # longer answers are right only if they are the same text

MARKED = re.compile(r"^####(.*)$", re.MULTILINE)
STATED = re.compile(r"^[ \t*_#>]*(?:final[ \t]+)?answer[ \t*_]*:(.*)$", re.MULTILINE | re.IGNORECASE)  # **Answer:** 5
SPECIAL_TOKEN = re.compile(r"<[^<>\s]{1,40}>\Z")  # <|im_end|>, </s>
OPEN = r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{"
TEXT = re.compile(OPEN + r"([^{}]*)\}")
GAP = r"(?:\s|~|\\[,;:! ])"
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?")
OPTION = re.compile(r"\(?([A-J])\)?(?:[.:)].*)?", re.DOTALL)  # C, (C), C) what it says
LETTER = re.compile(  # of an option: no quantity (5 A), article or pronoun (A line, I think)
    r"(?<![\w\\{^])(?<!\d )(?<!\\circ )(?:[B-HJ]|[AI](?! [a-z]))(?![\w^'])"
)
WORD = re.compile(r"[A-Za-z]{4,}")
BASE = re.compile(r"\d_\{?(\d+)")
NOON = re.compile(r"\d([ap])\.?m\b")
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALE = re.compile(rf"(?<=\d){GAP}*({OPEN}\s*)?({'|'.join(SCALES)})s?\b", re.IGNORECASE)
UNIT = re.compile(rf"(?:(?<=\d)|(?<=\d\}}))(?:{GAP}*{OPEN}([^{{}}]*)\}}|{GAP}+([A-Za-z]{{3,}}(?: [A-Za-z]+)*)$)")
NO_UNIT = re.compile(  # words that make another number of the one before them
    r"^\s*(?:squared|cubed|factorial)\b"
    r"|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|half|halves|thirds?"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|(?:four|fif|six|seven|eigh|nin|ten)ths?"
    r"|(?:hundred|thousand|[bm]illion|trillion)(?:s|ths?)?|dozens?|sin|cos|tan|log|sqrt|infinity"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|sigma|omega|phi|psi|rho|tau|pi)\b",
    re.IGNORECASE,
)


def response_of(query: str, prompt: str) -> str:
    """The response in `query`, which OpenRLHF decodes from the tokens of prompt and response, without special tokens.

    The prompt is left out, as it may hold a worked example. One that was cut off on its left is found by its end; if that
    was respelled by the tokenizer, the whole query is returned.
    """
    for known in (prompt, prompt[-64:]):
        _, separator, response = query.partition(known) if known else ("", "", "")
        if separator:
            return _without_special_tokens(response)
    return _without_special_tokens(query)


def _without_special_tokens(text: str) -> str:
    """Those at its end are cut off."""
    text = text.rstrip()
    while token := SPECIAL_TOKEN.search(text, max(0, len(text) - 42)):
        text = text[: token.start()].rstrip()
    return text


def extract_answer(response: str) -> str | None:
    r"""What the last `\boxed{...}` holds; without a box, what follows the last `####` or `Answer:`
    at the beginning of a line.

    None if there is none of them.
    """
    open_braces: list[tuple[int, bool]] = []  # where the content starts, and whether it is a box's
    last = None
    for token in re.finditer(r"(\\(?:boxed|fbox)\s*)?\{|\\.|\}", response, re.DOTALL):
        if token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((token.end(), token[1] is not None))
        elif token[0] == "}" and open_braces:
            start, box = open_braces.pop()
            if box and (last is None or start > last[0]):
                last = start, token.start()
    if last:
        return response[slice(*last)].strip()
    stated = [
        (match.start(), text)
        for pattern in (MARKED, STATED)
        for match in pattern.finditer(response)
        if (text := match[1].strip(" \t\r*_"))
    ]
    return sorted(stated, key=lambda found: found[0])[-1][1] if stated else None


def cleaned(answer: str) -> str:
    """The answer in LaTeX that math-verify reads."""
    answer = answer.strip().removesuffix(".").strip("$ ")
    for symbol, latex in {"−": "-", "–": "-", "°": r"^\circ", r"\varnothing": r"\emptyset", r"\$": ""}.items():
        answer = answer.replace(symbol, latex)
    answer = re.sub(r",\\!\s*|\{,\}", ",", answer)  # thousands
    answer = SCALE.sub(lambda match: rf" \cdot 10^{{{SCALES[match[2].lower()]}}}{match[1] or ''}", answer)
    return UNIT.sub(lambda match: rf"\text{{ {match[match.lastindex or 0]}}}", answer)


def normalized(answer: str) -> str:
    """The answer without what only changes its looks; equal strings are equal answers."""
    answer = re.sub(r"\\left\b|\\right\b|\\[!,;: ]|~", "", cleaned(answer))
    answer = TEXT.sub(r"\1", re.sub(r"\\[dt]frac\b", r"\\frac", answer)).strip().removesuffix(".")
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", answer)


def options(answer: str) -> set[str]:
    """The letters of options that the answer names."""
    return set(LETTER.findall(re.sub(GAP + "+", " ", TEXT.sub(r" \1 ", cleaned(answer)))))


def counting_words(answer: str) -> list[str]:
    """Words behind the answer's numbers that make other numbers of them: hundred, and a half."""
    words = (match[match.lastindex or 0].strip().casefold() for match in UNIT.finditer(cleaned(answer)))
    return [text for text in words if NO_UNIT.search(text)]


def number(text: str) -> Fraction | None:
    """The decimal number that the text is, exactly; None if it is none."""
    if not NUMBER.fullmatch(text) or not re.search(r"^[^eE]*\d", text):
        return None
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0) if abs(int(exponent or 0)) < 1000 else None


def decided(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal, if that is plain without algebra, else None.

    Numbers are compared exactly, where math-verify rounds decimals to 6 digits. Words are compared as words, where it
    multiplies their letters. Digits in different bases differ, and times before and after noon; it drops both.
    """
    if max(len(gold), len(answer)) > 4 * MAX_CHARACTERS:  # normalizing would take long
        return gold == answer
    a, b = normalized(gold), normalized(answer)
    if a == b:
        return True
    if max(len(a), len(b)) > MAX_CHARACTERS:
        return False
    if (x := OPTION.fullmatch(a)) and (y := OPTION.fullmatch(b)):
        return x[1] == y[1] and options(gold) == options(answer)
    if WORD.fullmatch(a) and WORD.fullmatch(b):
        return a.casefold() == b.casefold()
    if counting_words(gold) != counting_words(answer):
        return False
    p, q = number(a), number(b)
    if p is not None and q is not None:
        return p == q
    marks = [(pattern.search(a), pattern.search(b)) for pattern in (BASE, NOON)]
    return False if any(x and y and x[1] != y[1] for x, y in marks) else None

"""The words that change no value, as words.toml has them: units, things that are counted, what stands in front of an answer."""

import re
import tomllib
from pathlib import Path

LISTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_UNITS = {name: names.split("=")[0] for names in LISTS["units"].split() for name in names.split("=")}
_BESIDE, _WHICH = (frozenset(LISTS[name].split()) for name in ("beside", "which"))
LEAD, SAYS, CURRENCY = (frozenset(LISTS[name].split()) for name in ("lead", "says", "currencies"))
PHRASES = {same: line.split("; ")[0] for line in LISTS["phrases"].strip().splitlines() for same in line.split("; ")}
SCALES = {word: int(factor) for word, factor in (pair.split("=") for pair in LISTS["scales"].split())}
_WORDS = {*LEAD, *SAYS, *_BESIDE, *_WHICH, *LISTS["words"].split()}


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

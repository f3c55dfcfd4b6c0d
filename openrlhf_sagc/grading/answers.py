"""Verdicts that need no algebra: answers that are plainly equal or plainly different. For the others see comparison.py."""

import re

from openrlhf_sagc.grading.cleaning import cleaned, number, spelled_out

MAX_CHARACTERS = 1000  # longer answers are right only if they are the same text
_ENDS = (r"minim[au]\w*|smallest|lowest|least", r"maxim[au]\w*|largest|highest|greatest")


def decided(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal, if numbers, choices or the same text tell, else None. An empty answer equals nothing."""
    if not gold.strip() or not answer.strip():
        return False
    if max(len(text) for side in (gold, answer) for text in (side, spelled_out(side))) > MAX_CHARACTERS:
        return gold == answer
    a, b = cleaned(gold), cleaned(answer)
    if a == b:
        return a != ""
    if all(len(text) == 1 and "A" <= text <= "J" for text in (a, b)):
        return False
    ends = [{end for end in _ENDS if re.search(rf"\b(?:{end})\b", text, re.IGNORECASE)} for text in (a, b)]
    if ends[0] and ends[1] and ends[0].isdisjoint(ends[1]):
        return False  # one speaks of the smallest value, the other of the largest
    wanted, given = number(a), number(b)
    return None if wanted is None or given is None else wanted == given

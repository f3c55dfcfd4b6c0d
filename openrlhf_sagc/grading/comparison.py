"""Comparison of two answers by math-verify, in the calling process and without a time limit."""

from math_verify import parse, verify  # type: ignore[import-untyped]

from openrlhf_sagc.grading.answers import cleaned
from openrlhf_sagc.grading.disarm import check_names


def equal(gold: str, answer: str) -> bool:
    """Whether math-verify finds them equal."""
    return verify(expressions(gold), expressions(answer), allow_set_relation_comp=True, timeout_seconds=None)


def expressions(text: str) -> list:
    """What math-verify reads in the answer.

    Raises:
        ValueError: a name in it is no name.
    """
    found = parse(rf"\boxed{{{cleaned(text)}}}", parsing_timeout=None)
    for expression in found:
        if not isinstance(expression, str):
            check_names(expression)
    return found

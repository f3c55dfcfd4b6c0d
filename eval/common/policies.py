"""Policies as the commands name them.

A policy is `fixed:N` or `sagc`, for compare.py also `unpatched:N`. Behind the first two, `+tail` adds tail batching,
`+tail:R` the same with a response_ratio of R, and `+lengths` length-aware dispatch. `@samples` or `@prompts` at the end
says what a step keeps at every group size.
"""

import re
from typing import NamedTuple

KINDS = ("unpatched", "fixed", "sagc")
GRAMMAR = re.compile(
    r"(?P<kind>unpatched(?=:)|fixed(?=:)|sagc(?!:))(?::(?P<size>\d+))?"
    r"(?P<additions>(?:\+(?:tail(?::\d+(?:\.\d+)?)?|lengths))*)(?:@(?P<hold>samples|prompts))?"
)


class Policy(NamedTuple):
    """`name` is the word without the hold; `size` is None for sagc; `response_ratio` and `hold` are None if not given."""

    name: str
    kind: str
    size: int | None
    tail: bool
    response_ratio: float | None
    lengths: bool
    hold: str | None

    @property
    def is_fixed_size(self) -> bool:
        """Whether it is a fixed group size and nothing more."""
        return self.size is not None and not self.tail and not self.lengths


def parse_policy(word: str, kinds: tuple[str, ...] = KINDS) -> Policy:
    """The policy that a word names.

    Raises:
        ValueError: it names none of these kinds; the message begins with --policies.
    """
    found = GRAMMAR.fullmatch(word)
    additions = found["additions"].split("+")[1:] if found else []
    names = [addition.partition(":")[0] for addition in additions]
    plain_only = found and found["kind"] == "unpatched" and additions
    if not found or found["kind"] not in kinds or plain_only or len(set(names)) < len(names):
        forms = " or ".join(kind if kind == "sagc" else f"{kind}:N" for kind in kinds)
        raise ValueError(
            f"--policies {word}: use {forms}; behind fixed:N or sagc +tail, +tail:RESPONSE_RATIO or +lengths; and @samples "
            "or @prompts at the end"
        )
    ratio = next((float(addition.partition(":")[2]) for addition in additions if ":" in addition), None)
    size = int(found["size"]) if found["size"] else None
    name = word.partition("@")[0]
    return Policy(name, found["kind"], size, "tail" in names, ratio, "lengths" in names, found["hold"])

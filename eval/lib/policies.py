"""Policies as the commands name them.

A policy is `fixed:N` or `sagc`, for simulate.py also `FILE.py:Class`, a class of one's own in the place of `sagc`, and
`pool:R`, an asynchronous run with a pool of R steps' prompts, for
compare.py also `unpatched:N`. Behind all but the last, `+tail` adds tail batching, by the method that is measured best,
`+tail:sort` and `+tail:stop` by this one, and `+tail:R` by `stop` with a response_ratio of R;
`+lengths` adds placed rollouts. For compare.py, `+forward` keeps the forward pass for old log-probs, `+shuffled` shuffles
micro-batches, `+stream` streams, and `+round` weighs every round of tail batching the same. `+filter` adds dynamic
filtering, behind `unpatched:N` too, where it is OpenRLHF's own. `@samples` or `@prompts` at the end says what a step keeps
at every group size.
"""

import re
from typing import NamedTuple

KINDS = ("unpatched", "fixed", "sagc")
STEP = ("forward", "shuffled", "stream", "round", "filter")  # additions that change how a step is trained
GRAMMAR = re.compile(
    r"(?:(?P<kind>unpatched(?=:)|fixed(?=:)|pool(?=:)|sagc(?!:))(?::(?P<size>\d+))?|(?P<own>[^+@]+\.py:\w+))"
    r"(?P<additions>(?:\+(?:tail(?::(?:sort|stop|\d+(?:\.\d+)?))?|lengths|forward|shuffled|stream|round|filter))*)(?:@(?P<hold>samples|prompts))?"
)


class Policy(NamedTuple):
    """`name` is the word without the hold and without folders; `size` is None for sagc; `tail` is the method, None without tail batching;
    `response_ratio` and `hold` are None if not given. `own` is FILE.py:Class, None for another kind than `own`.

    `step` are the additions of STEP.
    """

    name: str
    kind: str
    size: int | None
    tail: str | None
    response_ratio: float | None
    lengths: bool
    hold: str | None
    step: frozenset[str] = frozenset()
    own: str | None = None
    pool: int | None = None

    @property
    def is_fixed_size(self) -> bool:
        """Whether it is a fixed group size and nothing more."""
        return self.size is not None and not self.tail and not self.lengths and not self.step


def parse_policy(word: str, kinds: tuple[str, ...] = KINDS) -> Policy:
    """The policy that a word names.

    Raises:
        ValueError: it names none of these kinds; the message begins with --policies.
    """
    found = GRAMMAR.fullmatch(word)
    additions = found["additions"].split("+")[1:] if found else []
    names = [addition.partition(":")[0] for addition in additions]
    kind = (found["kind"] or "own") if found else ""
    plain_only = (
        kind == "unpatched"
        and {*names} - {"filter"}
        or kind == "pool"
        and ({*names} - {"lengths"} or found["size"] == "0")
    )
    step = frozenset(names).intersection(STEP)
    unknown_step = step and "unpatched" not in kinds  # simulated steps have flags of their own
    if not found or kind not in kinds or plain_only or unknown_step or len(set(names)) < len(names):
        form_of = {
            kind: {"sagc": "sagc", "own": "FILE.py:Class", "pool": "pool:R"}.get(kind, f"{kind}:N") for kind in kinds
        }
        behind = " or ".join(form for kind, form in form_of.items() if kind not in ("unpatched", "pool"))
        additions = "+tail, +tail:sort, +tail:stop, +tail:RESPONSE_RATIO or +lengths"
        if "unpatched" in kinds:
            additions = (
                "+tail, +tail:sort, +tail:stop, +tail:RESPONSE_RATIO, +lengths, +forward, +shuffled, +stream or +round; "
                "behind any +filter"
            )
        raise ValueError(
            f"--policies {word}: use {' or '.join(form_of.values())}; behind {behind} {additions}; and @samples or @prompts at "
            "the end"
        )
    given = next((addition.partition(":")[2] for addition in additions if addition.startswith("tail")), None)
    tail = given if given in ("sort", "stop", None) else "stop" if given else "auto"
    ratio = float(given) if given and tail != given else None
    size = int(found["size"]) if found["size"] else None
    pool, size = (size, None) if kind == "pool" else (None, size)
    name = word.partition("@")[0].rpartition("/")[2]
    return Policy(name, kind, size, tail, ratio, "lengths" in names, found["hold"], step, found["own"], pool)

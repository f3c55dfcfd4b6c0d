"""What a check says of a node, and what it knows of it."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_sagc.redaction import without_secrets

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
LONGEST = 300  # characters of a reason
PATHS = re.compile(r"(?<![\w/])(?:/[^\s/:'\",()\]]+){2,}/?")


@dataclass(frozen=True)
class Node:
    """Where a check runs. In a dry run it takes the CPU, in small."""

    folder: Path  # of the check's files, which no other one writes
    dry_run: bool = False

    @property
    def device(self) -> str:
        return "cpu" if self.dry_run else "cuda"


@dataclass(frozen=True)
class Outcome:
    """A status, and what it is taken from: a number with its unit, and the bound that it has to keep."""

    status: str
    number: float | None = None
    unit: str = ""
    bound: str = ""
    reason: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0


class NotHere(Exception):
    """A check does not apply to this node; the message says why."""


def measured(number: float, unit: str, *, least=None, most=None, reason: str = "", **details) -> Outcome:
    """Pass if the number keeps its bound, which NaN does not.

    Args:
        number: what was measured, in `unit`.
        least, most: the bound; one of them.
        reason: what to say besides.
        details: other figures of the check.
    """
    kept = number >= least if most is None else number <= most
    bound = f">= {least:g}" if most is None else f"<= {most:g}"
    return Outcome(PASS if kept else FAIL, number, unit, bound, reason, details)


def for_strangers(text: str) -> str:
    """In one line, without secrets, and without what tells whose machine it is: paths but for their last part, its names."""
    line = without_secrets(" ".join(text.split()))
    line = PATHS.sub(lambda found: f".../{found[0].rstrip('/').rpartition('/')[2]}", line)
    for name in sorted({socket.gethostname(), socket.getfqdn()} - {"", "localhost"}, key=len, reverse=True):
        line = line.replace(name, "HOST")
    line = re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ADDRESS", line)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."

"""Flags that OpenRLHF had once, and what each is today: renamed_flags.csv, made from the parsers of its versions."""

import csv
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CLOSE = 0.75  # of difflib's ratio: below it two names have little in common


@dataclass(frozen=True)
class RenamedFlag:
    """A flag of train_ppo_ray that OpenRLHF 0.11.2 does not take."""

    flag: str
    values: int  # words that follow it, at least
    first: str  # version that had it first
    since: str  # version that does not have it any more
    successors: tuple[str, ...]  # flags and, where they are fixed, their values
    note: str  # what else to know, or why there is no successor

    def describe(self, name: str = "") -> str:
        """One line for whoever gives it to a run, perhaps under an abbreviated name."""
        if not self.successors:
            return f"{name or self.flag} has no successor since {self.since} ({self.note}): drop it"
        words = " ".join(self.successors).replace(" --", " and --")
        return f"{name or self.flag} is {words} since {self.since}" + (f"; {self.note}" if self.note else "")


@cache
def renamed_flags() -> dict[str, RenamedFlag]:
    """By their names."""
    with Path(__file__).with_suffix(".csv").open(newline="") as file:
        return {
            row["flag"]: RenamedFlag(
                row["flag"],
                int(row["values"]),
                row["first"],
                row["since"],
                tuple(row["successors"].split()),
                row["note"],
            )
            for row in csv.DictReader(file)
        }


def explain(name: str, flags: Iterable[str]) -> str:
    """Says in one line what to do about a flag that the run does not know.

    Args:
        name: the flag as it was given, without its value.
        flags: those that the run knows.
    """
    if renamed := renamed_flag(name):
        return renamed.describe(name)
    closest = closest_flag(name, flags)
    if not closest:
        return (
            f"{name} is not a flag of OpenRLHF 0.11.2 or of this package: drop it, or look for another one in --help"
        )
    known = f"{name} is not a flag; the closest one is "
    return known + (
        renamed_flags()[closest].describe().replace(" ", ", which ", 1) if closest in renamed_flags() else closest
    )


def renamed_flag(name: str) -> RenamedFlag | None:
    """The flag of an earlier version that has this name, or alone begins with it, as argparse abbreviates."""
    begin = [flag for flag in renamed_flags() if flag.startswith(name)]
    return renamed_flags().get(name) or (renamed_flags()[begin[0]] if len(begin) == 1 else None)


def closest_flag(name: str, flags: Iterable[str]) -> str:
    """The flag of today or of an earlier version that is spelt most like this one; empty if none is like it.

    A name without its section (`--batch_size` of `--train.batch_size`) counts as well, a little less.
    """
    word = name.lstrip("-").replace("-", "_").lower()

    def likeness(flag: str) -> float:
        whole = flag.lstrip("-").lower()
        ratios = [difflib.SequenceMatcher(None, word, whole).ratio()]
        ratios += [0.95 * difflib.SequenceMatcher(None, word, whole.partition(".")[2]).ratio()] * ("." in whole)
        return max(ratios)

    best = max([*flags, *renamed_flags()], key=likeness)
    return best if likeness(best) >= CLOSE else ""

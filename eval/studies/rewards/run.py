"""Every kind of reward, fast, slow and with a call that hangs: what OpenRLHF as released makes of it, and what this package does.

    python eval/studies rewards --samples 16

Each cell is asked by one and then the other, three times. It needs the CPU stack (train_scripts/setup.sh), and takes ten minutes
on two cores. The number of rewards is the least of the three, the seconds are the shortest, since other work on the machine only adds.
"""

import asyncio
import tempfile
from pathlib import Path

from lib.paths import study_flags
from studies.rewards.cells import ARMS, KINDS, SPEEDS, Asked, ask, servers, target_of

REPETITIONS = 3
SECONDS = 0.1  # of a slow sample
HANG = {"timeout": 1.0, "limit": 6.0}  # in cells with a call that hangs, which OpenRLHF never gives up
LONGEST, MORE = 1.1, 0.2  # times, or seconds: what ours may take


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--samples", type=int, default=16, help="rewards asked for at once")
    args = parser.parse_args()
    cells = measured(args.samples)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "table.md").write_text(table(cells) + "\n")
    print(table(cells))
    for kind, speed in worse(cells):
        print(f"worse than unpatched: {kind}, {speed}")


def measured(samples: int) -> dict[tuple[str, str], list[Asked]]:
    """What the arms had, by kind and speed."""
    cells = {}
    with servers(SECONDS) as addresses, tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for speed in SPEEDS:
                target = target_of(kind, speed, SECONDS, addresses, Path(folder))
                limits = HANG if speed == "one hang" else {}
                runs = [[asyncio.run(ask(arm, target, samples, **limits)) for arm in ARMS] for _ in range(REPETITIONS)]
                cells[kind, speed] = [combined(of_arm) for of_arm in zip(*runs, strict=True)]
    return cells


def combined(runs: tuple[Asked, ...]) -> Asked:
    ended = [run.seconds for run in runs if run.seconds is not None]
    return Asked(min(run.rewards for run in runs), min(ended) if len(ended) == len(runs) else None)


def worse(cells: dict[tuple[str, str], list[Asked]]) -> list[tuple[str, str]]:
    """Cells in which ours has fewer rewards, or takes longer than it may."""
    return [
        cell
        for cell, (unpatched, ours) in cells.items()
        if ours.rewards < unpatched.rewards
        or unpatched.seconds is not None
        and (ours.seconds is None or ours.seconds > max(LONGEST * unpatched.seconds, unpatched.seconds + MORE))
    ]


def table(cells: dict[tuple[str, str], list[Asked]]) -> str:
    """Markdown: rewards and seconds, unpatched and then ours."""
    lines = ["| reward | " + " | ".join(SPEEDS) + " |", "| --- |" + " ---: |" * len(SPEEDS)]
    for kind in KINDS:
        entries = ["; ".join(map(_entry, cells[kind, speed])) for speed in SPEEDS]
        lines.append(f"| {kind} | " + " | ".join(entries) + " |")
    return "\n".join(lines)


def _entry(asked: Asked) -> str:
    return f"{asked.rewards} in {asked.seconds:.2f} s" if asked.seconds is not None else f"{asked.rewards}, hangs"

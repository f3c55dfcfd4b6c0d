"""What parts of this package cost by themselves. Each is a module here with its TITLE and `measure()`, which gives the table.

    python eval/studies overhead controller   # the group-size controller, a step
    python eval/studies overhead scheduler    # the whole scheduler on stub engines, a step
    PYTHONPATH=build/cpu-base python eval/studies overhead dispatch  # a prompt on its way, with the tokenizer and without
    python eval/studies overhead driver       # the whole driver on stub engines as a step grows, unpatched beside it
    python eval/studies overhead partition    # forward batches of a rollout under dynamic batches, unpatched beside it
    PYTHONPATH=build/cpu-base .venv/bin/python eval/studies overhead advantages  # per-token advantages; on a GPU the kernel

It writes NAME.csv, and advantages a folder of them.
"""

import importlib
from pathlib import Path

from lib.paths import study_flags
from lib.tables import show

PARTS = ("advantages", "controller", "dispatch", "driver", "partition", "scheduler")


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("part", choices=PARTS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    part = importlib.import_module(f"studies.overhead.{arguments.part}")
    if arguments.part == "advantages":
        part.write(arguments.output / "group_advantage")
        return
    table = part.measure()
    show(part.TITLE, table)
    table.to_csv(arguments.output / f"{arguments.part}.csv", index=False, float_format="%.4g")

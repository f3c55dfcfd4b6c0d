"""Seconds a step with OpenRLHF's placement of groups, with groups placed by length, and with rollouts placed by length.

Every run is simulated: 1,024 samples a step, prompts of a set of 1,024 (lib/simulation/workloads.py). The package places
rollouts. To place groups by length is only done here, as the middle of the comparison. It writes seconds.csv.
"""

import itertools
from pathlib import Path

import pandas as pd
from lib.paths import ENGINES, study_flags
from lib.simulation.runs import started
from lib.simulation.workloads import Workload, WorkloadSource
from lib.tables import show

SIZES, GPUS, STEPS = (8, 16, 32), (16, 64, 128), 40
SETTINGS = {  # what stands behind fixed:N, and whether groups without a signal are dropped
    "plain": ("", False),
    "dynamic sampling": ("", True),
    "tail batching": ("+tail:1", False),
    "tail batching, 1.25 times the rollouts": ("+tail:1.25", False),
}
PLACEMENTS = ("OpenRLHF's", "groups by length", "rollouts by length")


def seconds(setting: str, gpus: int, size: int, placement: str) -> float:
    """Mean seconds of a step of a simulated run."""
    behind, filters = SETTINGS[setting]
    policy = f"fixed:{size}{behind}{'' if placement == PLACEMENTS[0] else '+lengths'}"
    source = WorkloadSource(Workload(), seed=0)
    run = started(policy, gpus, source, ENGINES / "h100-7b.json", dynamic_sampling=filters, objective="size")
    run.planner.whole_groups = placement == PLACEMENTS[1]
    return sum(run.step()["seconds"] for _ in range(STEPS)) / STEPS


def main() -> None:
    arguments = study_flags(__doc__, Path(__file__).parent).parse_args()
    rows = []
    for setting, gpus, size in itertools.product(SETTINGS, GPUS, SIZES):
        found = {name: seconds(setting, gpus, size, name) for name in PLACEMENTS}
        faster = found[PLACEMENTS[0]] / found[PLACEMENTS[2]]
        rows.append({"setting": setting, "gpus": gpus, "group size": size, **found, "times as fast": faster})
    table = pd.DataFrame(rows)
    arguments.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.output / "seconds.csv", index=False, float_format="%.4g")
    show(f"seconds a step, {STEPS} steps", table.round(2))

"""Seconds a step with OpenRLHF's placement of groups, with groups placed by length, and with rollouts placed by length.

Every run is simulated: Qwen2.5-7B on H100s by a roofline (eval/engines/h100-7b.json), 1,024 samples a step, and prompts of
a set of 1,024 (simulation/workloads.py). The package places rollouts. To place groups by length is only done here, as the
middle of the comparison. It writes a CSV with a row for each setting, number of GPUs and group size.
"""

import argparse
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pandas as pd
from common.paths import ENGINES, RESULTS
from common.policies import parse_policy
from common.tables import show
from simulation.costs import CostModel
from simulation.flags import add_package_flags
from simulation.runs import train
from simulation.workloads import Workload, WorkloadSource

from openrlhf_sagc.decisions.length_prediction import balance

SIZES, GPUS = (8, 16, 32), (16, 64, 128)
SETTINGS = {  # what stands behind fixed:N, and whether groups without a signal are dropped
    "plain": ("", False),
    "dynamic sampling": ("", True),
    "tail batching": ("+tail:1", False),
    "tail batching, 1.25 times the rollouts": ("+tail:1.25", False),
}
PLACEMENTS = ("OpenRLHF's", "groups by length", "rollouts by length")


def balance_groups(
    loads_E: Sequence[float], expected_P: Sequence[float], rollouts: int
) -> list[tuple[int, tuple[int, ...]]]:
    """`balance` with all rollouts of a prompt on one engine."""
    placed = balance(loads_E, [rollouts * expected for expected in expected_P], 1)
    return [(prompt, engine * rollouts) for prompt, engine in placed]


def seconds(setting: str, gpus: int, size: int, placement: str, steps: int, seed: int) -> float:
    """Mean seconds of a step, of a simulated run of so many steps."""
    behind, filters = SETTINGS[setting]
    parser = argparse.ArgumentParser()
    add_package_flags(parser)
    settings = vars(parser.parse_args([])) | {
        "engine": ENGINES / "h100-7b.json",
        "batch_size": 128,
        "n_samples_per_prompt": 8,
        "prompt_tokens": 256,
        "dynamic_sampling": filters,
        "objective": "size",
        "seed": seed,
    }
    policy = parse_policy(f"fixed:{size}{behind}{'' if placement == PLACEMENTS[0] else '+lengths'}")
    costs, source = CostModel.load(settings["engine"]), WorkloadSource(Workload(), seed)
    run = train(policy, gpus, source, costs, argparse.Namespace(**settings))  # type: ignore[arg-type]
    groups = placement == PLACEMENTS[1]
    with mock.patch("openrlhf_sagc.decisions.planner.balance", balance_groups) if groups else nullcontext():
        return sum(run.step()["seconds"] for _ in range(steps)) / steps


def compare(gpus: Sequence[int], sizes: Sequence[int], steps: int, seed: int) -> pd.DataFrame:
    """A row for each setting, number of GPUs and group size: seconds a step, and the last column's gain on the first."""
    rows = []
    for setting, number, size in itertools.product(SETTINGS, gpus, sizes):
        found = {name: seconds(setting, number, size, name, steps, seed) for name in PLACEMENTS}
        faster = found[PLACEMENTS[0]] / found[PLACEMENTS[2]]
        rows.append({"setting": setting, "gpus": number, "group size": size, **found, "times as fast": faster})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=list(GPUS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="group sizes")
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, default=RESULTS / "placement" / "seconds.csv", help="file for the table")
    arguments = parser.parse_args()
    rows = compare(arguments.gpus, arguments.sizes, arguments.steps, arguments.seed)
    arguments.csv.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(arguments.csv, index=False, float_format="%.4g")
    show(f"seconds a step, {arguments.steps} steps", rows.round(2))


if __name__ == "__main__":
    main()

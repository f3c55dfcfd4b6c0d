"""Time that the group-size controller takes for one step, for several groupings of the step's rollouts."""

import argparse
import random
import statistics
import time
from pathlib import Path

import pandas as pd
from common.tables import show

from openrlhf_sagc.controller import StragglerAwareGroupController

WARM_UP = 20  # untimed steps: the first ones import and allocate


def step_groups(rollouts: int, group_size: int, rng: random.Random) -> list[list[int]]:
    """Lognormal lengths in tokens as the scheduler gives them: one list of ints for each group."""
    return [[int(rng.lognormvariate(6, 0.6)) for _ in range(group_size)] for _ in range(rollouts // group_size)]


def measure(groups: list[list[int]], repeats: int) -> dict[str, float]:
    """Median and 99th percentile of `repeats` steps, in milliseconds."""
    controller = StragglerAwareGroupController()
    seconds = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        controller.observe(groups)
        seconds.append(time.perf_counter() - start)
    timed = seconds[WARM_UP:]
    return {"median_ms": 1e3 * statistics.median(timed), "p99_ms": 1e3 * statistics.quantiles(timed, n=100)[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=4096, help="rollouts a step")
    parser.add_argument("--repeats", type=int, default=500, help="timed steps for each grouping, at least 2")
    parser.add_argument("--csv", type=Path, help="file for the figures")
    arguments = parser.parse_args()

    rng = random.Random(0)
    quarter = arguments.rollouts // 4
    groupings = {f"size {size}": step_groups(arguments.rollouts, size, rng) for size in (4, 8, 16, 32)}
    groupings["sizes 4, 8, 16 and 32"] = sum((step_groups(quarter, size, rng) for size in (4, 8, 16, 32)), [])
    rows = pd.DataFrame(
        {
            "grouping": name,
            "groups": len(groups),
            "rollouts": sum(map(len, groups)),
            **measure(groups, arguments.repeats),
        }
        for name, groups in groupings.items()
    )
    show("StragglerAwareGroupController.observe(), one step", rows)
    if arguments.csv:
        rows.to_csv(arguments.csv, index=False)


if __name__ == "__main__":
    main()

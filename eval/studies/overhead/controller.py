"""Time that the group-size controller takes for one step, for several groupings of the step's rollouts."""

import random
import statistics
import time

import pandas as pd

from openrlhf_sagc.controller import StragglerAwareGroupController

TITLE = "StragglerAwareGroupController.observe(), one step"
WARM_UP = 20  # untimed steps: the first ones import and allocate


def step_groups(rollouts: int, group_size: int, rng: random.Random) -> list[list[int]]:
    """Lognormal lengths in tokens as the scheduler gives them: one list of ints for each group."""
    return [[int(rng.lognormvariate(6, 0.6)) for _ in range(group_size)] for _ in range(rollouts // group_size)]


def timed(groups: list[list[int]], repeats: int) -> dict[str, float]:
    """Median and 99th percentile of `repeats` steps, in milliseconds."""
    controller = StragglerAwareGroupController()
    seconds = []
    for _ in range(WARM_UP + repeats):
        start = time.perf_counter()
        controller.observe(groups)
        seconds.append(time.perf_counter() - start)
    counted = seconds[WARM_UP:]
    return {"median_ms": 1e3 * statistics.median(counted), "p99_ms": 1e3 * statistics.quantiles(counted, n=100)[-1]}


def measure(rollouts: int = 4096, repeats: int = 500) -> pd.DataFrame:
    """A row a grouping of a step's rollouts."""
    rng = random.Random(0)
    groupings = {f"size {size}": step_groups(rollouts, size, rng) for size in (4, 8, 16, 32)}
    mixed = [step_groups(rollouts // 4, size, rng) for size in (4, 8, 16, 32)]
    groupings["sizes 4, 8, 16 and 32"] = sum(mixed, [])
    return pd.DataFrame(
        {"grouping": name, "groups": len(groups), "rollouts": sum(map(len, groups)), **timed(groups, repeats)}
        for name, groups in groupings.items()
    )

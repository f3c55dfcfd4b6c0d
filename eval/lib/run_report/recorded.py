"""The runs of a comparison on two cores, as `compare.py` writes them: steps.csv, evaluations.csv and settings.json."""

from pathlib import Path

import numpy as np
import pandas as pd
from lib.given import MOST, check_plain, json_of
from lib.run_report.measured import FIRST_OF, HEALTH, PARTS, Arm, Measured
from lib.run_report.statistics import right_of

FILES = ("settings.json", "steps.csv", "evaluations.csv")
NUMBERS = ("target", "seconds")
RUN = ["algorithm", "policy", "seed"]
UNSAID = {"shape": "padded"}  # of older comparisons, whose settings do not say it
NAMES = {"trained": "samples", "trained_length": "length", "seconds": "spent"}


def is_recorded(folder: Path) -> bool:
    """Whether the folder holds a comparison."""
    return all((folder / name).is_file() for name in FILES)


def read_recorded(folder: Path) -> tuple[list[Arm], dict]:
    """The arms of a comparison, an algorithm's policy each, and its settings.

    Raises:
        ValueError: a file is none of a comparison's.
    """
    settings = json_of(folder / FILES[0])
    if not isinstance(settings, dict) or not all(type(settings.get(name)) in (int, float) for name in NUMBERS):
        raise ValueError(
            f"{folder / FILES[0]} has no numbers {' and '.join(NUMBERS)}: give a folder of eval/compare.py"
        )
    settings = UNSAID | settings
    steps, evaluations = (_frame(folder / name) for name in FILES[1:])
    arms = []
    for (algorithm, policy), mine in evaluations.groupby(RUN[:2], sort=False):
        runs = []
        for seed, run in mine.groupby("seed"):
            own = steps[(steps[RUN] == [algorithm, policy, seed]).all(axis=1)]
            runs.append(_measured(folder, int(seed), own, run, policy))
        arms.append(Arm(policy, runs, algorithm))
    return arms, settings


def _frame(path: Path) -> pd.DataFrame:
    check_plain(path, MOST)
    try:
        frame = pd.read_csv(path, compression=None)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if missing := [name for name in RUN if name not in frame]:
        raise ValueError(f"{path} has no column {missing[0]}")
    if frame.empty:
        raise ValueError(f"{path} has no runs")
    return frame


def _measured(folder: Path, seed: int, steps: pd.DataFrame, evaluations: pd.DataFrame, policy: str) -> Measured:
    steps = steps.rename(columns=NAMES).set_index("step").drop(columns=RUN)
    steps = steps.assign(seconds=steps[PARTS].sum(axis=1), first=np.arange(len(steps)) == 0, hours=np.nan)
    made = steps.get("rollouts", steps["groups"] * steps["group_size"])  # older files count whole groups only
    steps = steps.assign(tokens=steps["samples"] * steps["length"], made=made)
    missing = [name for name in [*FIRST_OF, *HEALTH] if name not in steps]
    steps = steps.assign(**dict.fromkeys(missing, np.nan))
    evaluations = evaluations.drop(columns=RUN).rename(columns={"seconds": "spent"}).reset_index(drop=True)
    shares_EP = right_of(evaluations)
    evaluations = evaluations.assign(
        reward=shares_EP.mean(axis=1), problem_samples=evaluations["samples"], hours=np.nan
    )
    evaluations = evaluations.assign(samples=evaluations["samples"] * shares_EP.shape[1])
    return Measured(str(folder), seed, steps, evaluations, kept={"comparison": policy})

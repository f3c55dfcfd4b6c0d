"""What plain steps, rounds that weigh the same and weighed rounds do to learning, from the runs of a comparison.

A row is an arm: means over its runs of what they logged, the spread of each over the seeds, and its difference from the first
arm, paired by seed, with the 95 % interval of a t-test. Only steps that all runs of a seed have are compared. The weights of
tenths are shares of the update over shares of the tokens, over all rounds of a run.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from lib.logs import read_run
from lib.tables import markdown
from scipy import stats

LOGGED = {
    "rollout/reward_mean": "training reward",
    "rollout/response_length_mean": "response length",
    "rollout/truncated_rate": "truncated",
    "actor_grad_norm": "gradient norm",
    "ppo_clip_ratio": "clip share",
    "ppo_kl": "policy's KL",
}
TENTHS = [f"token_weight/{tenth}_tenth" for tenth in ("longest", "shortest")]


ARMS, SEEDS = ("fixed-8", "fixed-8-tail-1-round", "fixed-8-tail-1"), (0, 1, 2, 3)


def write(runs: Path, path: Path) -> None:
    """The table of the runs of a comparison, as CSV and on the terminal."""
    table = pd.DataFrame(rows(runs))
    table.to_csv(path, index=False)
    print(markdown(list(table), [[shown(cell) for cell in row] for row in table.values]))


def rows(folder: Path, arms: Sequence[str] = ARMS, seeds: Sequence[int] = SEEDS) -> list[dict]:
    """A row for each arm and quantity."""
    logs = {
        (arm, seed): read_run(folder / f"seed-{seed}/grpo/{arm}/tensorboard/run") for arm in arms for seed in seeds
    }
    steps = {seed: min(len(logs[arm, seed]) for arm in arms) for seed in seeds}
    found = []
    for tag, name in LOGGED.items():
        values = {
            arm: pd.Series({seed: logs[arm, seed][tag].iloc[: steps[seed]].mean() for seed in seeds}) for arm in arms
        }
        found += [row(name, arm, values[arm], values[arms[0]]) for arm in arms]
    for tenth in TENTHS:
        for arm in arms:
            taken = [logs[arm, seed] for seed in seeds]
            if all(f"{tenth}_update" in log for log in taken):
                weights = [log[f"{tenth}_update"].iloc[-1] / log[f"{tenth}_tokens"].iloc[-1] for log in taken]
                found.append(row(f"weight of the {tenth.split('/')[1].replace('_', ' ')}", arm, pd.Series(weights)))
    return found


def row(name: str, arm: str, values: pd.Series, reference: pd.Series | None = None) -> dict:
    """Of one quantity of an arm: `values` has one for each seed, and so has `reference`."""
    cells = {"quantity": name, "arm": arm, "mean": values.mean(), "sd over seeds": values.std()}
    if reference is None or reference is values:
        return cells | {"difference": None, "half of its interval": None}
    difference = values - reference
    half = stats.t.ppf(0.975, len(values) - 1) * difference.sem()
    return cells | {"difference": difference.mean(), "half of its interval": half}


def shown(cell: object) -> str:
    if isinstance(cell, float):
        return "" if pd.isna(cell) else f"{cell:.4g}"
    return str(cell)

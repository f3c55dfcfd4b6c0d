"""What plain steps, rounds that weigh the same and weighed rounds do to learning, from the runs of a comparison.

A row is an arm: means over its runs of what they logged, the spread of each over the seeds, and its difference from the first
arm, paired by seed, with the 95 % interval of a t-test. Only steps that all runs of a seed have are compared. The weights of
tenths are shares of the update over shares of the tokens, over the last 100 steps of a run.

Which prompts share a step is chance, and so are the weights of few steps. A second table, NAME_drawn.csv, has what plain steps
give the same prompts on average, and how far chance moves it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.arms import SAMPLES
from lib.comparison.logs import read_samples
from lib.run_logs.read import read_run
from lib.tables import markdown
from scipy import stats

from openrlhf_sagc.decisions.token_weights import WINDOW, TokenWeights, Trained

LOGGED = {
    "rollout/reward_mean": "training reward",
    "rollout/response_length_mean": "response length",
    "rollout/truncated_rate": "truncated",
    "actor_grad_norm": "gradient norm",
    "ppo_clip_ratio": "clip share",
    "ppo_kl": "policy's KL",
}
TENTHS = [f"token_weight/{tenth}_tenth" for tenth in ("longest", "shortest")]
SIZE = 8  # of a group
DRAWS = 400
ARMS, SEEDS = ("fixed-8", "fixed-8-tail-1-round", "fixed-8-tail-1"), (0, 1, 2, 3)


def write(runs: Path, path: Path, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """The tables of the runs of a comparison, as CSV and on the terminal."""
    for made, file in ((rows, path), (drawn_rows, path.with_name(f"{path.stem}_drawn.csv"))):
        table = pd.DataFrame(made(runs, arms, seeds))
        table.to_csv(file, index=False)
        print(markdown(list(table), [[shown(cell) for cell in row] for row in table.values]), end="\n\n")


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


def drawn_rows(folder: Path, arms: Sequence[str] = ARMS, seeds: Sequence[int] = SEEDS) -> list[dict]:
    """The weights of tenths where the last groups of each run share plain steps at random."""
    rng, found = np.random.default_rng(0), []
    for arm in arms:
        for seed in seeds:
            groups = last_groups(
                read_samples(folder / f"seed-{seed}/grpo/{arm}", next(folder.glob("task-*/data/heldout.jsonl")))
            )
            draws = [drawn_weights([groups[place] for place in rng.permutation(len(groups))]) for _ in range(DRAWS)]
            for tenth, weights in zip(TENTHS, np.transpose(draws)):
                name = f"weight of the {tenth.split('/')[1].replace('_', ' ')}"
                found.append({"quantity": name, "arm": arm, "seed": seed, "mean": weights.mean(), "sd": weights.std()})
    return found


def last_groups(samples: pd.DataFrame) -> list[Trained]:
    """The last groups of a run that came back whole, of WINDOW steps, in the order in which they did."""
    waiting: dict[int, list[int]] = {}
    groups = []
    for prompt, tokens in samples.loc[~samples["heldout"], ["prompt", "tokens"]].itertuples(index=False):
        waiting.setdefault(prompt, []).append(tokens)
        if len(waiting[prompt]) == SIZE:
            groups.append(Trained(sum(waiting.pop(prompt)), SIZE))
    return groups[-WINDOW * (SAMPLES // SIZE) :]


def drawn_weights(groups: list[Trained]) -> list[float]:
    """The weights of the longest and the shortest tenth in plain steps of these groups, in this order."""
    per_step, weights = SAMPLES // SIZE, TokenWeights(by_frame=False)
    for begin in range(0, len(groups) - per_step + 1, per_step):
        weights.weigh(groups[begin : begin + per_step], long=False)
    metrics = weights.metrics()
    return [metrics[f"{name}_tenth_update"] / metrics[f"{name}_tenth_tokens"] for name in ("longest", "shortest")]


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

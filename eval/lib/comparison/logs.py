"""Steps and evaluations of a run of a comparison, from its TensorBoard log and the log of its reward.

The reward's log has a line for every sample of patched and unpatched OpenRLHF alike, filtered samples included.
"""

import json
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
from lib.run_logs.console import PHASES
from lib.run_logs.read import read
from lib.synthetic_reward import checksum

ROUNDS = ("long_round", "sorted_round", "wasted_tokens")  # as tail batching logs them


def read_samples(folder: Path, evaluated: Path) -> pd.DataFrame:
    """The samples in the order of their rewards: prompt (checksum), score, tokens, time, heldout."""
    names = ["prompt", "score", "tokens", "time"]
    samples = pd.read_csv(folder / "rewards.log", sep=" ", names=names)
    problems = [json.loads(line)["prompt"] for line in evaluated.read_text().splitlines()]
    return samples.assign(heldout=samples["prompt"].isin([checksum(problem) for problem in problems]))


def read_steps(folder: Path, evaluated: Path, straggler_ratio: float) -> pd.DataFrame:
    """A row a step: what was rolled out in it, and where its seconds went.

    Args:
        folder: of the run.
        evaluated: file of the held-out problems.
        straggler_ratio: max / median from which a group has a straggler event.

    Returns:
        step; `seconds` of training up to its end, from the end of the first step on, which warms vLLM up; `generation`,
        `experience`, `training` and `sync` in s, with `idle_tail`, the part of `generation` that a rollout of the step
        waited for the last one, on average; `groups`, `rollouts`, `reward` (mean), `length_{mean,median,max}` (tokens)
        of all that finished, before any filter; `group_size` and `straggler_rate` of the same groups, or as control logs them, which
        counts stopped groups with their chance; `trained` samples and their mean `trained_length`; `virtual_queue`
        where there is one; `long_round` and `sorted_round`, 1 or 0, and `wasted_tokens` of tail batching.
    """
    run = read(str(folder / "tensorboard/run"))
    logged, samples = run.steps, read_samples(folder, evaluated)
    samples = samples[~samples["heldout"]]
    after_generation = logged[[*PHASES]].drop(columns="timing/generation").sum(axis=1)
    ends = logged["wall_time"] - after_generation
    # This package logs a step behind its evaluation, OpenRLHF as released before it.
    evaluated_first = run.evaluations["wall_time"].reindex(logged.index) <= logged["wall_time"]
    ends = ends.where(~evaluated_first, logged["wall_time"].shift() + logged["timing/generation"])
    number = np.searchsorted(logged["wall_time"], samples["time"])
    rows = []
    for at, (step, log) in enumerate(logged.iterrows()):
        mine = samples[number == at]
        groups = [group for _, group in mine.groupby("prompt")["tokens"]]
        # The finished samples of a group that was stopped are logged as well. A pool's step may train what was there before it.
        size = statistics.mode(map(len, groups)) if groups else 0
        groups = [group for group in groups if len(group) >= size]
        events = [group.max() >= straggler_ratio * group.median() for group in groups]
        rows.append(
            {
                "step": step,
                **{name: log[tag] for tag, name in PHASES.items()},
                "idle_tail": (ends[step] - mine["time"]).clip(0, log["timing/generation"]).mean(),
                "groups": len(groups),
                "rollouts": len(mine),
                "group_size": log.get("sagc/group_size", size),
                "straggler_rate": log.get("sagc/straggler_rate", np.mean(events) if events else np.nan),
                "reward": mine["score"].mean(),
                "length_mean": mine["tokens"].mean(),
                "length_median": mine["tokens"].median(),
                "length_max": mine["tokens"].max(),
                "trained": log["rollout/num_samples"],
                "trained_length": log["rollout/response_length_mean"],
                "virtual_queue": log.get("sagc/virtual_queue", np.nan),
                **{name: log.get(f"tail_batching/{name}", 0.0) for name in ROUNDS},
            }
        )
    steps = pd.DataFrame(rows)
    seconds = steps[[*PHASES.values()]].sum(axis=1)
    return steps.assign(seconds=seconds.cumsum() - seconds[0])


def read_evaluations(folder: Path, evaluated: Path, steps: pd.DataFrame) -> pd.DataFrame:
    """A row an evaluation: step, training seconds, samples a problem, right answers of each problem as "3 0 8 ...", mean tokens."""
    made = read(str(folder / "tensorboard/run")).evaluations["wall_time"]
    samples = read_samples(folder, evaluated)
    samples = samples[samples["heldout"]]
    problems = [checksum(json.loads(line)["prompt"]) for line in evaluated.read_text().splitlines()]
    seconds = steps.set_index("step")["seconds"]
    rows = []
    for number, of_evaluation in samples.groupby(np.searchsorted(made, samples["time"])):
        if number == len(made) or made.index[number] not in seconds:
            continue  # the run was ended in the middle
        of_problem = of_evaluation.groupby("prompt")["score"]
        rows.append(
            {
                "step": made.index[number],
                "seconds": seconds[made.index[number]],
                "samples": of_problem.size().iloc[0],
                "right": " ".join(str(int(n)) for n in of_problem.sum().reindex(problems)),
                "tokens": of_evaluation["tokens"].mean(),
            }
        )
    return pd.DataFrame(rows)

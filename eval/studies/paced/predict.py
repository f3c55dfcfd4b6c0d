"""Seconds a step of the arms with groups of 8, simulated with the pace as costs and the lengths of plain's runs.

What the pace does not say is as in plain's runs of the seed: what vLLM takes between two iterations and a step's generation before
the first, experience, weight sync. A pool has the plain runs of the drafts' shape, which were made on its machine. OpenRLHF's asynchronous
training, other group sizes and OpenRLHF without this package's scheduler are not simulated.
"""

import json
import tempfile
from collections import deque
from pathlib import Path

import numpy as np
import pandas as pd
from lib.simulation.runs import started
from lib.simulation.work import Work
from lib.tables import markdown
from studies.paced.arms import CONTROL, PLANS, SHAPES, Arm
from studies.paced.table import PLAIN

PREDICTED = (
    "plain",
    "auto",
    "sort",
    "stop",
    "sort 1.02",
    "filter",
    "auto, filter",
    "pool, 1",
    "pool, 2",
    "pool, 4",
    "pool, 8",
)
PLAIN_OF = {"pool": "drafts"}  # the shape whose plain runs a shape has


class Replayed:
    """The prompts of a plain run, episode after episode, with the lengths and scores that they had there.

    A group that is rolled out again has those of the episode in another order, since they are all that is known.

    Args:
        groups: rows of one run: step, prompt, tokens and scores of its rollouts as "3 5 ...".
        size: prompts of an episode.
    """

    has_correct = True

    def __init__(self, groups: pd.DataFrame, size: int):
        self.size = size
        read = lambda words: np.array(words.split(), float)  # noqa: E731
        rows = list(zip(groups["prompt"], map(read, groups["tokens"]), map(read, groups["scores"])))
        self._episodes = [rows[start : start + size] for start in range(0, len(rows), size)]
        self._known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._left: deque[tuple] = deque()

    def begin(self, episode: int) -> None:
        rows = self._episodes[min(episode, len(self._episodes)) - 1]  # a filter needs more prompts than plain steps
        self._known |= {prompt: (tokens_R, scores_R) for prompt, tokens_R, scores_R in rows}
        self._left = deque(prompt for prompt, *_ in rows)

    def resume(self) -> None:
        """Nothing is saved."""

    def take(self, count: int) -> tuple[list[tuple], bool]:
        drawn = [self._left.popleft() for _ in range(min(count, len(self._left)))]
        return [(str(prompt), prompt, None) for prompt in drawn], len(drawn) < count

    def draw_rollouts(
        self, prompts_B: list[int], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """As those of lib/simulation/lengths.py."""
        orders = [generator.permutation(size) for _ in prompts_B]
        known = [self._known[prompt] for prompt in prompts_B]
        tokens_BR, scores_BR = (
            np.array([found[kind][order] for found, order in zip(known, orders)]) for kind in (0, 1)
        )
        return tokens_BR.astype(int), scores_BR

    def expected_tokens(self, prompts_B: list[int]) -> np.ndarray:
        """Mean tokens of each prompt."""
        return np.array([self._known[prompt][0].mean() for prompt in prompts_B])


def costs_of(plain: pd.DataFrame, shape: str) -> dict:
    """The pace as the simulator's costs, with what a plain run took besides."""
    kind, run = SHAPES[shape], plain.iloc[1:]
    per_token, first = np.polyfit(run["length_max"], run["generation"], 1)  # a step waits for its longest response
    running = (run["length_mean"] * run["rollouts"] / run["length_max"]).mean() / kind.gpus  # requests of an engine
    return {
        "decode_base": float(per_token - running * kind.each_ms / 1000),
        "generation_base": max(float(first), 0.0),
        "decode_per_request": kind.each_ms / 1000,
        "train_base": kind.sample_ms * kind.prompts * 8 / 1000,
        "experience_base": float(plain["experience"].median()),
        "sync": float(plain["sync"].median()),
        "max_running": 256,
        "kv_limit": 10**9,
        "gpus_per_engine": 1,
        **dict.fromkeys(("decode_per_kv_token", "prefill_per_token"), 0.0),
        **dict.fromkeys(("experience_per_token", "train_per_token"), 0.0),
    }


def simulated(arm: Arm, groups: pd.DataFrame, costs: dict, shape: str, steps: int, seed: int) -> float:
    """Mean seconds of an arm's steps behind the first."""
    kind = SHAPES[shape]
    settings = {"batch_size": kind.prompts, "prompt_tokens": 6, "seed": seed, **CONTROL}
    settings |= {name.rpartition(".")[2]: value for name, value in arm.flags.items()}
    policy, trainers = arm.policy.replace("+filter", ""), 0
    if arm.split:
        trainers = arm.split[1]
        policy = f"pool:{arm.flags['rollout.vllm_generate_batch_size'] // kind.prompts}"
        costs = costs | {"train_base": costs["train_base"] * kind.gpus / trainers}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "costs.json"
        file.write_text(json.dumps(costs))
        source = Replayed(groups, kind.problems)
        filters = policy != arm.policy
        work = Work(actor_gpus=trainers)
        run = started(policy, kind.gpus, source, file, work, dynamic_sampling=filters, **settings)
        return float(np.mean([run.step()["seconds"] for _ in range(steps)][1:]))


def predictions(steps: pd.DataFrame, groups: pd.DataFrame, shape: str = "two") -> str:
    """A Markdown table: measured and predicted seconds a step of each arm, over the seeds that it and plain have."""
    source = PLAIN_OF.get(shape, shape)
    plains = steps[(steps["shape"] == source) & (steps["arm"] == PLAIN)]
    steps, groups, rows = steps[steps["shape"] == shape], groups[groups["shape"] == source], []
    for name in [name for name in PREDICTED if name in PLANS[shape]]:
        found = []
        for seed, mine in groups.groupby("seed"):
            run = steps[(steps["arm"] == name) & (steps["seed"] == seed)]
            if len(run):
                plain = plains[plains["seed"] == seed]
                seconds = simulated(PLANS[shape][name], mine, costs_of(plain, shape), shape, len(run), seed)
                found.append([run["step_seconds"].iloc[1:].mean(), seconds])
        if found:
            measured, predicted = np.mean(found, axis=0)
            rows.append(
                [name, len(found), f"{measured:.2f}", f"{predicted:.2f}", f"{100 * (predicted / measured - 1):+.1f}"]
            )
    return markdown(["arm", "seeds", "measured s a step", "predicted", "error %"], rows, alignment="lrrrr")

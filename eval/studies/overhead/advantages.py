"""Tokens' advantages on a CPU: OpenRLHF's loop against the closed form, and the bytes that are sent. On a GPU also the kernel."""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import ray.cloudpickle
import torch
from lib.benchmarks.batches import KL_COEF, draw_batch, openrlhf_path
from lib.machine import processor_name
from lib.tables import show
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from rich.console import Console
from rich.progress import track

from openrlhf_sagc.advantages import group_advantages
from openrlhf_sagc.training.batches import Batch, Tokens
from openrlhf_sagc.training.rollout_rewards import SAMPLE, RolloutRewards, rollout_advantages

GROUP_SIZE = 8
TOLERANCE = 1e-5


class Timed:
    """A function and the seconds of its calls, without the first one, which is the warm-up."""

    def __init__(self, function: Callable):
        self.function, self.calls, self.seconds = function, 0, 0.0

    def __call__(self, *inputs):
        began = time.perf_counter()
        result = self.function(*inputs)
        if self.calls:
            self.seconds += time.perf_counter() - began
        self.calls += 1
        return result


def time_paths(samples: int, tokens: int, micro_batch: int) -> pd.DataFrame:
    """Seconds of each path for a step, in micro-batches, without the KL in the reward and with it."""
    shape = {"samples": samples, "tokens": tokens, "micro_batch": micro_batch}
    rows = []
    sizes = [GROUP_SIZE] * (samples // GROUP_SIZE) + [samples % GROUP_SIZE] * (samples % GROUP_SIZE > 0)
    rewards = torch.rand(samples, generator=torch.Generator().manual_seed(0))
    advantages, offsets = group_advantages(rewards, sizes), torch.tensor([0, *sizes]).cumsum(0)
    for kl_coef in (0.0, KL_COEF):
        paths = {"OpenRLHF": Timed(openrlhf_path(RemoteExperienceMaker.get_cumulative_returns))}
        paths["closed form"] = Timed(rollout_advantages)  # the statistics, at a rollout's first batch, included
        difference, same_bits = dict.fromkeys(paths, 0.0), dict.fromkeys(paths, True)
        generator = torch.Generator().manual_seed(0)
        starts = range(-micro_batch, samples, micro_batch)  # the first one warms up
        for start in track(starts, f"KL {'in the reward' if kl_coef else 'left out'}", console=Console(stderr=True)):
            if start <= 0:
                rollout = RolloutRewards(rewards, offsets, "group_norm", None, kl_coef, shift=0.0, scale=1.0)
            mine = range(max(start, 0), min(max(start, 0) + micro_batch, samples))
            batch = draw_batch(len(mine), tokens, generator) | {"advantages": advantages[mine.start : mine.stop]}
            made = {"OpenRLHF": paths["OpenRLHF"](batch, kl_coef)}
            info = {SAMPLE: [torch.tensor(sample) for sample in mine]}
            experience = Experience(action_mask=batch["mask"], kl=batch["kl"] if kl_coef else None, info=info)
            made["closed form"] = paths["closed form"](rollout, experience)
            loop = made["OpenRLHF"]
            for name, result in made.items():
                error = (result - loop).abs().nan_to_num(nan=float("inf")).max().item()
                difference[name] = max(difference[name], error)
                same_bits[name] &= result.numpy().tobytes() == loop.numpy().tobytes()
        for name, path in paths.items():
            row = {
                "processor": processor_name(),
                "threads": torch.get_num_threads(),
                **shape,
                "kl": bool(kl_coef),
                "path": name,
                "seconds": path.seconds,
            }
            row["ratio"] = paths["OpenRLHF"].seconds / path.seconds
            rows.append({**row, "max_difference": difference[name], "same_bits": same_bits[name]})
    return pd.DataFrame(rows)


def sent_bytes(samples: int, tokens: int, micro_batch: int) -> pd.DataFrame:
    """Bytes of a step's experiences on their way from the driver to the training actors, pickled as Ray does."""
    batch = draw_batch(micro_batch, tokens, torch.Generator().manual_seed(0))
    number, ids = torch.zeros(micro_batch), torch.zeros(micro_batch, tokens + 1, dtype=torch.long)
    theirs = dict(sequences=ids, attention_mask=ids.clone(), action_mask=batch["mask"])
    theirs["rollout_log_probs"] = batch["kl"].clone()
    arrays = [row.numpy() for row in ids.int()], [[(0, tokens)]] * micro_batch, [row.numpy() for row in batch["kl"]]
    ours = partial(Batch, Tokens(*arrays, pad_token_id=0))

    def size(made: Callable, info: dict[str, torch.Tensor], **fields: torch.Tensor) -> int:
        info = dict(info, reward=number.clone(), kl=number.clone(), logprobs_diff=number.clone(), **{"return": number})
        per_sample = {name: number.clone() for name in ("rewards", "response_length", "truncated", "total_length")}
        fields |= {"action_log_probs": token.clone()}  # if a forward pass made them
        lists = dict(index=list(range(micro_batch)), prompts=[""] * micro_batch, labels=[""] * micro_batch)
        return len(ray.cloudpickle.dumps(made(info=info, **per_sample, **lists, **fields)))

    token = batch["kl"]
    sizes = {
        "OpenRLHF": size(
            partial(Experience, **theirs),
            {"group_reward_std": number.clone()},
            advantages=token.clone(),
            returns=token.clone(),
        ),
        "a reward a sample": size(ours, {SAMPLE: number.long()}),
        "a reward a sample, and the KL": size(ours, {SAMPLE: number.long()}, kl=token.clone()),
    }
    rows = [
        {
            "sent": name,
            "bytes_per_token": value / (micro_batch * tokens),
            "gigabytes_a_step": value / micro_batch * samples / 1e9,
            "saved": 1 - value / sizes["OpenRLHF"],
        }
        for name, value in sizes.items()
    ]
    return pd.DataFrame(rows)


def write(folder: Path, samples: int = 4096, tokens: int = 8192, micro_batch: int = 16) -> None:
    """cpu.csv and bytes.csv of a step, and on a GPU the kernel's table; ends where a result is not OpenRLHF's."""
    times = time_paths(samples, tokens, micro_batch)
    if (times.max_difference > TOLERANCE).any():
        show("Differences from OpenRLHF's loop", times[["kl", "path", "max_difference"]])
        sys.exit("eval/studies overhead: parity is red: no speed-up is reported")
    folder.mkdir(parents=True, exist_ok=True)
    where = f"{times.processor[0]}, {times.threads[0]} threads"
    show(f"Tokens' advantages of a step on a CPU ({where})", times.drop(columns=["processor", "threads"]))
    times.to_csv(folder / "cpu.csv", index=False, float_format="%.6g")
    sent = sent_bytes(samples, tokens, micro_batch)
    show("From the driver to the training actors", sent)
    sent.to_csv(folder / "bytes.csv", index=False, float_format="%.6g")

    from lib.benchmarks import gpu  # which imports Triton

    gpu.run(folder, show)

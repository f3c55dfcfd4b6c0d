"""A policy step in buckets of groups against the step at once: how far the gradients differ, and what buckets cost.

It is the arithmetic of `--train.stream auto` (training/streamed_training.py) on PyTorch alone: a bucket's loss is a sum over
a constant, and the step's number of tokens divides the gradients at its end. Advantages come from the kernel.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch

from openrlhf_sagc.advantages.kernel import fused_group_advantages

DIVISOR = 2.0**10  # of every bucket's loss; a power of two rounds nothing
TITLE = "A policy step in buckets"
GROUP_SIZE = 8


@dataclass(frozen=True)
class Shape:
    """A model, and a step of groups of GROUP_SIZE samples; `tolerance` is of the gradient's difference, over its norm."""

    layers: int
    width: int
    vocabulary: int
    groups: int
    tokens: int
    micro_batch: int
    tolerance: float = 1e-5  # in float32


GPU = Shape(layers=12, width=1024, vocabulary=32_000, groups=32, tokens=1024, micro_batch=16)
CPU = Shape(layers=2, width=32, vocabulary=64, groups=4, tokens=24, micro_batch=16)


class Policy(torch.nn.Module):
    """A causal transformer without dropout."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.width)
        layer = torch.nn.TransformerEncoderLayer(
            shape.width, max(shape.width // 64, 1), 4 * shape.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)

    def log_probs(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        """[B, T - 1] log-probabilities of every token but the first."""
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens_BT.shape[1] - 1, device=tokens_BT.device)
        hidden = self.layers(self.embedding(tokens_BT[:, :-1]), mask=mask, is_causal=True)
        logits = self.head(hidden).float().log_softmax(-1)
        return logits.gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)


@dataclass
class PolicyStep:
    """The samples of a step: tokens [N, T], ends [N] where each has its last token, rewards [N], offsets [G + 1]."""

    tokens_NT: torch.Tensor
    ends_N: torch.Tensor
    rewards_N: torch.Tensor
    offsets_G1: torch.Tensor

    def train(self, policy: Policy, groups: list[int], micro_batch: int, divisor: float) -> int:
        """Accumulate the gradients of these groups' loss, a sum over `divisor`; returns their number of tokens."""
        samples = torch.cat([torch.arange(*self.offsets_G1[group : group + 2]) for group in groups])
        samples = samples[self.ends_N[samples].argsort()]  # micro-batches by length
        count, device = 0, self.tokens_NT.device
        for samples_B in samples.split(micro_batch):
            longest = int(self.ends_N[samples_B].max())
            mask = torch.arange(1, longest, device=device) < self.ends_N[samples_B].to(device).unsqueeze(1)
            advantages, _ = fused_group_advantages(
                self.rewards_N, self.offsets_G1.to(device), mask, samples_B.to(device)
            )
            log_probs = policy.log_probs(self.tokens_NT[samples_B.to(device), :longest])
            ratio = (log_probs - log_probs.detach()).exp()
            (-(ratio * advantages * mask).sum() / divisor).backward()
            count += int((self.ends_N[samples_B] - 1).sum())
        return count


def draw_step(shape: Shape, device: str) -> PolicyStep:
    """Random tokens, lengths from a quarter of the longest on, rewards of 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    samples = shape.groups * GROUP_SIZE
    tokens = torch.randint(shape.vocabulary, (samples, shape.tokens), generator=generator)
    ends = torch.randint(shape.tokens // 4, shape.tokens + 1, (samples,), generator=generator)
    rewards = torch.rand(samples, generator=generator).round()
    return PolicyStep(tokens.to(device), ends, rewards.to(device), torch.arange(0, samples + 1, GROUP_SIZE))


def gradient(policy: Policy, step: PolicyStep, shape: Shape, buckets: int) -> torch.Tensor:
    """The step's gradient, all parameters in one vector: of the mean over tokens, trained in so many buckets."""
    policy.zero_grad()
    groups = torch.randperm(shape.groups, generator=torch.Generator().manual_seed(buckets))  # as they come back
    parts = [part.tolist() for part in groups.chunk(buckets)]
    tokens = sum(step.train(policy, part, shape.micro_batch, DIVISOR) for part in parts)
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]) * (DIVISOR / tokens)


def measure(device: str, shape: Shape, repeats: int) -> pd.DataFrame:
    """A row for each number of buckets, 1 being the step at once; the repeats of all take turns."""
    torch.manual_seed(0)
    policy, step = Policy(shape).to(device), draw_step(shape, device)
    counts = [count for count in (1, 2, 4, 8) if count <= shape.groups]
    expected = gradient(policy, step, shape, 1)
    rows = [{"buckets": count, "difference": 0.0} for count in counts]
    for row in rows:
        difference = gradient(policy, step, shape, row["buckets"]) - expected
        row["difference"] = (difference.norm() / expected.norm()).item()
    seconds = [[_seconds(lambda: gradient(policy, step, shape, count)) for count in counts] for _ in range(repeats)]
    for row, column in zip(rows, zip(*seconds)):
        row |= {"seconds": sorted(column)[repeats // 2], "least_seconds": min(column)}
    return pd.DataFrame(rows).assign(slower_by=lambda table: table.seconds / table.seconds[0])


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start

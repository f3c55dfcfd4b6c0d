"""A policy step of packed samples with and without the forward pass for the old log-probabilities: gradient, seconds, memory.

It is the arithmetic of `--train.old_log_probs` in a rollout's first optimizer step on PyTorch alone: a decoder of a real model's
size without rotary positions, its layers checkpointed, each sample attending to itself only.
"""

import time
from dataclasses import dataclass

import pandas as pd
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

TITLE = "A policy step of packed samples with and without the forward pass for old log-probabilities"
FORWARD = "forward"
WAYS = (FORWARD, "auto")  # of --train.old_log_probs
CLIP = (0.8, 1.28)


@dataclass(frozen=True)
class Shape:
    """A model and its step of packed samples; `tolerance` is of the gradient's difference, over its norm."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    samples: int
    longest: int
    pack: int  # tokens at most
    dtype: torch.dtype
    tolerance: float


GPU = Shape(28, 1536, 12, 2, 8960, 151_936, 64, 4096, 8192, torch.bfloat16, 2e-2)  # Qwen2.5-1.5B's sizes
CPU = Shape(2, 32, 4, 2, 48, 64, 7, 24, 48, torch.float32, 1e-5)


class Layer(torch.nn.Module):
    """Grouped attention of each sample to itself, and a gated layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.sizes = [shape.width // shape.heads * heads for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        self.head = shape.width // shape.heads
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(shape.width) for _ in range(2))
        self.attention_in = torch.nn.Linear(shape.width, sum(self.sizes), bias=False)
        self.attention_out = torch.nn.Linear(shape.width, shape.width, bias=False)
        self.gate_and_up = torch.nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = torch.nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, hidden_TW: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        projected = self.attention_in(self.norms[0](hidden_TW)).split(self.sizes, dim=-1)
        heads = [part.unflatten(-1, (-1, self.head)).transpose(0, 1).split(lengths, dim=1) for part in projected]
        attended = [
            functional.scaled_dot_product_attention(*(part[None] for part in sample), is_causal=True, enable_gqa=True)[
                0
            ]
            for sample in zip(*heads)
        ]
        hidden_TW = hidden_TW + self.attention_out(torch.cat(attended, dim=1).transpose(0, 1).flatten(1))
        gate, up = self.gate_and_up(self.norms[1](hidden_TW)).chunk(2, dim=-1)
        return hidden_TW + self.down(functional.silu(gate) * up)


class Policy(torch.nn.Module):
    """A decoder."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = torch.nn.RMSNorm(shape.width)
        self.head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)

    def log_probs(self, tokens_T: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """[T] log-probabilities of the token that follows each one; those of a sample's last token say nothing."""
        hidden_TW = self.embedding(tokens_T)
        for layer in self.layers:
            hidden_TW = checkpoint(layer, hidden_TW, lengths, use_reentrant=False)
        return -functional.cross_entropy(self.head(self.norm(hidden_TW)).float(), tokens_T.roll(-1), reduction="none")


@dataclass
class Pack:
    """Samples side by side: tokens [T], their lengths, and [T] advantages, 0 at each sample's last token."""

    tokens_T: torch.Tensor
    lengths: list[int]
    advantages_T: torch.Tensor


def draw_packs(shape: Shape, device: str) -> list[Pack]:
    """Random tokens in samples of log-normal lengths, in packs as full as their order allows."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(shape.samples).log_normal_(0, 1, generator=generator) * shape.longest / 4
    packs: list[list[int]] = [[]]
    for length in drawn.long().clamp(2, shape.longest).tolist():
        if sum(packs[-1]) + length > shape.pack:
            packs.append([])
        packs[-1].append(length)
    made = []
    for lengths in packs:
        advantages = torch.cat([torch.randn(1, generator=generator).expand(length) for length in lengths])
        advantages[torch.tensor(lengths).cumsum(0) - 1] = 0
        tokens = torch.randint(shape.vocabulary, (sum(lengths),), generator=generator)
        made.append(Pack(tokens.to(device), lengths, advantages.to(device)))
    return made


def train(policy: Policy, packs: list[Pack], old_log_probs: str) -> None:
    """Accumulate the gradient of the step's clipped loss, a mean over its tokens."""
    policy.zero_grad()
    count, old = sum(len(pack.tokens_T) - len(pack.lengths) for pack in packs), []
    if old_log_probs == FORWARD:
        with torch.no_grad():
            old = [policy.log_probs(pack.tokens_T, pack.lengths) for pack in packs]
    for number, pack in enumerate(packs):
        new_T = policy.log_probs(pack.tokens_T, pack.lengths)
        ratio_T = (new_T - (old[number] if old else new_T.detach())).exp()
        objective_T = torch.minimum(ratio_T * pack.advantages_T, ratio_T.clamp(*CLIP) * pack.advantages_T)
        (-objective_T.sum() / count).backward()


def measure(device: str, shape: Shape, repeats: int) -> pd.DataFrame:
    """A row for each value of --train.old_log_probs, which take turns: the gradient's difference from the first, seconds,
    peak memory."""
    torch.manual_seed(0)
    policy, packs = Policy(shape).to(device, shape.dtype), draw_packs(shape, device)
    tokens = sum(len(pack.tokens_T) for pack in packs)
    rows: list[dict] = [{"old_log_probs": way, "tokens": tokens} for way in WAYS]
    expected: list[torch.Tensor] = []
    for row in rows:
        train(policy, packs, row["old_log_probs"])
        found = [parameter.grad for parameter in policy.parameters()]
        expected = expected or [gradient.clone() for gradient in found]
        row["difference"] = (_norm([a - b for a, b in zip(found, expected)]) / _norm(expected)).item()
    del expected, found
    seconds = [[_timed(policy, packs, row) for row in rows] for _ in range(repeats)]
    for row, column in zip(rows, zip(*seconds)):
        row |= {"seconds": sorted(column)[repeats // 2], "least_seconds": min(column)}
    return pd.DataFrame(rows).assign(times_as_fast=lambda table: table.seconds[0] / table.seconds)


def _norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([gradient.float().norm() for gradient in gradients]).norm()


def _timed(policy: Policy, packs: list[Pack], row: dict) -> float:
    on_gpu = packs[0].tokens_T.is_cuda
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    train(policy, packs, row["old_log_probs"])
    if on_gpu:
        torch.cuda.synchronize()
        row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return time.perf_counter() - start

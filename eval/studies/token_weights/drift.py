"""How far a parameter that only long prompts move gets with tail batching, over how far it gets in plain steps.

A token's gradient is noise in every parameter, and in a quarter of them a signal besides if it is of a long prompt. Half of the
tokens are of long prompts, which fill one round in five. The optimizer is AdamW with betas 0.9 and 0.95, and the norm's bound
binds in a third of the plain steps. `by round` weighs every round the same, `weighed` is training's default
(openrlhf_sagc/training/step_weights.py), and `scaled` multiplies loss and bound by the weight.
"""

from types import SimpleNamespace

import pandas as pd
import torch
from lib.tables import show

from openrlhf_sagc.training.step_weights import as_plain_steps

PARAMETERS, MOVED = 200, 50
PLAIN, TAIL = [(1000, 1000)] * 5, [(0, 1250)] * 4 + [(5000, 0)]  # tokens of long and of short prompts, in each round
TOKENS = 2000  # of a plain step
NOISE = TOKENS**-0.5  # of a plain step's gradient, in each parameter
BOUND = 17.5 * NOISE
SIGNALS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)


def drift(signal: float, rounds: list[tuple[int, int]], scheme: str, frames: int, seed: int = 0) -> float:
    """Mean move of the parameters that long prompts move, in `frames` times these rounds.

    Args:
        signal: over the noise, in a plain step.
        scheme: `by round`, `weighed` or `scaled`.
    """
    generator = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.zeros(PARAMETERS, dtype=torch.float64))
    optimizer = torch.optim.AdamW([parameter], lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)
    optimizer.clip_grad = BOUND  # type: ignore[attr-defined]  # as DeepSpeed's optimizers have it
    config = SimpleNamespace(gradient_clipping=BOUND)
    engine = SimpleNamespace(optimizer=optimizer, _config=config, global_steps=0, skipped_steps=0)
    for _ in range(frames):
        for long, short in rounds:
            tokens = long + short
            weight = tokens / TOKENS
            # Some batches have larger gradients than others, whatever their lengths.
            noise = torch.exp(0.5 * torch.randn(1, generator=generator)) * tokens**-0.5
            gradient = noise * torch.randn(PARAMETERS, generator=generator, dtype=torch.float64)
            gradient[:MOVED] -= 2 * signal * NOISE * long / tokens
            scale = weight if scheme == "scaled" else 1.0
            with as_plain_steps(engine, weight if scheme == "weighed" else 1.0):
                parameter.grad = scale * gradient
                torch.nn.utils.clip_grad_norm_([parameter], scale * optimizer.clip_grad)  # type: ignore[attr-defined]
                optimizer.step()
            engine.global_steps += 1
    return parameter[:MOVED].mean().item()


def show_table(frames: int = 240) -> None:
    """Print a row for each signal: the drift of each scheme over that of plain steps."""
    rows = []
    for signal in SIGNALS:
        plain = drift(signal, PLAIN, "by round", frames)
        schemes = {name: drift(signal, TAIL, name, frames) / plain for name in ("by round", "weighed", "scaled")}
        rows.append({"signal over noise": signal, **schemes})
    show("drift over that of plain steps", pd.DataFrame(rows).round(2))

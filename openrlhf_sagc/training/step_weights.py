"""In a policy's actor: an optimizer step whose samples are longer than those of plain steps counts as several of them.

docs/tail_batching.md derives what follows for the optimizer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

# A mean over w times as many tokens has 1 / sqrt(w) of the noise. So a norm that is all noise asks for a bound of
# w ** -0.5, one without noise for w ** 0. Gradients of RL are mostly noise; docs/tail_batching.md has what this gives.
BOUND_POWER = -1 / 3


class StepCounts:
    """Counts the action tokens and the samples that are trained for the next optimizer step.

    Args:
        strategy: OpenRLHF's, which knows the ranks.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.clear()

    def clear(self) -> None:
        """An optimizer step is made."""
        self._counts = torch.zeros(2, dtype=torch.float64)

    def add(self, experience: Experience) -> None:
        """This micro-batch is about to be trained."""
        mask_BT = experience.action_mask
        counts = torch.stack([mask_BT.sum(), torch.tensor(len(mask_BT), device=mask_BT.device)])
        self._counts = self._counts.to(counts.device) + counts

    def of_all_ranks(self) -> tuple[float, float]:
        """Tokens and samples of all ranks; those of a ring or a tensor-parallel group count several times.

        Every rank has to call this.
        """
        tokens, samples = self._strategy.all_reduce(self._counts.clone(), op="sum").tolist()
        return tokens, samples


@contextmanager
def as_plain_steps(engine: Any, count: float) -> Iterator[None]:
    """While this is entered, an optimizer step of a DeepSpeed engine counts as `count` plain steps.

    Its learning rate, and with it the weight decay, is `count` times as large, Adam's moments decay by `count` steps, and
    the bound of the gradient's norm is that of a gradient with less noise. The gradient and its norm stay as they are.
    Muon's own groups have the rate alone, since DeepSpeed applies their momentum in the backward pass.
    """
    if count == 1:
        yield
        return
    groups, schedule = engine.optimizer.param_groups, getattr(engine, "lr_scheduler", None)
    epoch = getattr(schedule, "last_epoch", None)
    names = ("lr", "betas", "eps", "weight_decay")
    before = [{name: group[name] for name in names if name in group} for group in groups]
    taken = engine.global_steps - engine.skipped_steps
    for group, old in zip(groups, before):
        group.update(_settings(old, count, taken + 1) if "betas" in old else {"lr": old["lr"] * count})
    # DeepSpeed's optimizers have a copy of the bound; without ZeRO and mixed precision the engine clips by its own.
    holders = [(engine._config, "gradient_clipping"), (engine.optimizer, "clip_grad")]
    bounds = [(holder, name, getattr(holder, name)) for holder, name in holders if hasattr(holder, name)]
    has_noise = not any(group.get("use_muon") for group in groups)  # Muon's updates all have the same norm
    for holder, name, bound in bounds:  # 0, which is none, stays 0
        setattr(holder, name, bound * (count**BOUND_POWER if has_noise else 1.0))
    try:
        yield
    finally:
        for holder, name, bound in bounds:
            setattr(holder, name, bound)
        for group, old in zip(groups, before):
            if getattr(schedule, "last_epoch", None) != epoch:  # the schedule has set the next rate
                del old["lr"]
            group.update(old)


def _settings(old: dict[str, Any], count: float, step: int) -> dict[str, Any]:
    """Adam's settings for a step that counts as `count`, the `step`-th of the run.

    Adam divides moments by 1 - beta ** step, as if the steps before had had these betas. What they have had is, on average,
    a count of 1. So rate and epsilon make up for the difference, and the decay of the weights for that of the rate.
    """
    betas = tuple(beta**count for beta in old["betas"])
    first, second = ((1 - beta**step) / (1 - usual**step) for beta, usual in zip(betas, old["betas"]))
    settings = {**old, "betas": betas, "lr": old["lr"] * count * first / second**0.5}
    if "eps" in old:
        settings["eps"] = old["eps"] / second**0.5
    if "weight_decay" in old:
        settings["weight_decay"] = old["weight_decay"] * second**0.5 / first
    return settings

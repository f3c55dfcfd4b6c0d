"""An experience maker, and experiences on which it and OpenRLHF's own can be compared."""

from types import SimpleNamespace

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.driver.experience import GroupSample
from openrlhf_sagc.driver.samples import Sample
from openrlhf_sagc.training.training import StepShare


def experience_maker(cls, estimator="group_norm", kl_coef=0.0, group_sizes=(8,) * 4, clip_range=(-10, 10)):
    maker = cls.__new__(cls)
    reward = SimpleNamespace(clip_range=clip_range, overlong_buffer_len=None, stop_properly_penalty_coef=None)
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    maker.args = SimpleNamespace(
        reward=reward,
        algo=SimpleNamespace(advantage=advantage, kl=SimpleNamespace(use_loss=False)),
        rollout=SimpleNamespace(n_samples_per_prompt=group_sizes[0], max_new_tokens=64),
    )
    maker.strategy = SimpleNamespace(args=maker.args)
    maker.advantage_estimator = estimator
    maker.initial_model_group = object() if kl_coef else None
    maker.kl_ctl = SimpleNamespace(value=kl_coef)
    maker._group_sizes = list(group_sizes)
    return maker


def model_groups(ranks: int) -> dict:
    """An experience maker's groups of models: actors on so many ranks, and no other model."""
    actors = SimpleNamespace(_actor_handlers=[None] * ranks, duplicate_actors=1)
    others = ("critic_model_group", "reward_model_group", "initial_model_group")
    return {"actor_model_group": actors} | dict.fromkeys(others)


def padded_batches_flags(ranks: int, micro_batch_size: int) -> dict:
    """Flags of a run that pads its samples, on so many ranks."""
    return {
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": ranks,
        "actor.aux_loss_coef": 0.0,
        "ds.ring_attn_size": 1,
        "ds.tensor_parallel_size": 1,
        "ds.packing_samples": False,
        "train.dynamic_batch_enable": False,
        "rollout.micro_batch_size": micro_batch_size,
    }


def experiences_of(rewards: torch.Tensor, order: list[int], batch: int) -> list[Experience]:
    """Micro-batches of samples in `order`: multi-turn masks with holes, one row without an action, KL on actions."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.randint(0, 2, (len(rewards), 20), generator=generator)
    mask[5] = 0
    kl = torch.randn(mask.shape, generator=generator) * mask
    picks = [order[i : i + batch] for i in range(0, len(order), batch)]
    return [
        Experience(index=pick, rewards=rewards[pick], action_mask=mask[pick], kl=kl[pick], info={}) for pick in picks
    ]


def samples_of(lengths: list[int], size: int = 1, step: StepShare | None = None) -> list[GroupSample]:
    """Samples of so many tokens, in groups of `size`."""
    texts = dict(prompt="", label="", images=None, mm_train_inputs=None, logs={})
    numbers = dict(log_probs_T=None, reward=1.0, score=1.0, truncated=False, clipped=False)
    samples = [Sample(tokens_T=np.ones(n, np.int32), ranges=[(0, n - 1)], **texts, **numbers) for n in lengths]
    return [GroupSample(sample, number // size, size, step) for number, sample in enumerate(samples)]

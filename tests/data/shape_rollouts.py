"""Runs OpenRLHF's compute_advantages_and_returns on recorded rollouts; prints a digest for each estimator.

Executed in a process of its own for each tree (unpatched, patched), which is on PYTHONPATH.
"""

import hashlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

ESTIMATORS = ["group_norm", "dr_grpo", "rloo", "reinforce_baseline", "reinforce", "flash_reinforce"]
MICRO_BATCH = 12  # does not divide the group size, and leaves a short last batch


def experiences_of(rollouts: list[dict]) -> list[Experience]:
    """Experiences as the actors return them: padded to the longest of a micro-batch, with some KL."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(rollouts), generator=generator).tolist()  # as length balancing leaves them
    experiences = []
    for start in range(0, len(order), MICRO_BATCH):
        index = order[start : start + MICRO_BATCH]
        rows = [rollouts[i] for i in index]
        width = max(row["prompt_tokens"] + row["response_tokens"] for row in rows) - 1
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for row_mask, row in zip(mask, rows):
            row_mask[row["prompt_tokens"] - 1 : row["prompt_tokens"] + row["response_tokens"] - 1] = 1
        experiences.append(
            Experience(
                index=index,
                action_mask=mask,
                kl=torch.randn(mask.shape, generator=generator) * 0.01,
                rewards=torch.tensor([row["reward"] for row in rows]),
                response_length=torch.tensor([row["response_tokens"] for row in rows]),
                truncated=torch.tensor([row["truncated"] for row in rows]),
            )
        )
    return experiences


def arguments(estimator: str) -> Namespace:
    return Namespace(
        algo=Namespace(advantage=Namespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)),
        reward=Namespace(
            clip_range=(-10, 10),
            overlong_buffer_len=100.0,
            overlong_penalty_factor=0.5,
            stop_properly_penalty_coef=None,
        ),
        rollout=Namespace(n_samples_per_prompt=8, max_new_tokens=200),
    )


def main() -> None:
    rollouts = json.loads(Path(sys.argv[1]).read_text())
    for estimator in ESTIMATORS:
        maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
        maker.strategy = SimpleNamespace(args=arguments(estimator))
        maker.args = maker.strategy.args
        maker.advantage_estimator = estimator
        maker.kl_ctl = SimpleNamespace(value=0.05)
        digest = hashlib.sha256()
        for experience in maker.compute_advantages_and_returns(experiences_of(rollouts)):
            info = [experience.info[key] for key in sorted(experience.info)]
            for tensor in (experience.advantages, experience.returns, *info):
                digest.update(tensor.contiguous().numpy().tobytes())
        print(estimator, digest.hexdigest())


if __name__ == "__main__":
    main()

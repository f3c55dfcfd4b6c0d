"""The places of samples among a step's rewards; tests/unit/driver/test_experience.py has the advantages."""

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch

from openrlhf_sagc.actors.rollout_rewards import RolloutRewards, numbered, rollout_advantages


@pytest.mark.parametrize("first", [0, 2])
def test_a_samples_place_survives_openrlhfs_batches_and_is_not_logged(first):
    rewards_N = torch.arange(8.0)
    rewards = RolloutRewards(rewards_N, torch.tensor([0, 8]), "dr_grpo", None, 0.0, 0.0, 1.0)
    mask = torch.ones(4, 3, dtype=torch.long)
    batch = Experience(sequences=torch.ones(4, 5), action_mask=mask, index=[3, 0, 5, 1], info={})
    numbered(batch, first)
    samples = split_experience_batch(batch)[::-1]
    batch = make_experience_batch(samples)
    advantages_BT = rollout_advantages(rewards, batch)
    places = torch.tensor([1, 5, 0, 3]) + first
    assert advantages_BT.tolist() == (rewards_N[places] - rewards_N.mean()).unsqueeze(1).expand(4, 3).tolist()
    assert batch.info.keys() == {"group_reward_std", "advantage_kernel"}

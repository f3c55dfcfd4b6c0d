"""The experience maker for groups of any size.

It sends the policy's actors a reward for every sample, and they make the tokens' advantages.
"""

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from openrlhf_sagc.actors.training import SAMPLE, RolloutRewards, receive_rollout
from openrlhf_sagc.advantages.closed_form import group_advantages, token_advantages

# Info keys by which samples carry the number and the size of their group, and the share of the run's prompts used before
# their step. A reward's `extra_logs` are in `info` as well, under names without a slash.
GROUP = "sagc/group"
GROUP_SIZE = "sagc/group_size"
PROGRESS = "sagc/progress"


class GroupExperienceMaker(RemoteExperienceMaker):
    """Experience maker whose group statistics are over the groups as they were dispatched."""

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """OpenRLHF's experiences of a step's samples, whose group sizes are noted first."""
        self._group_sizes = group_sizes_of(rollout_samples)
        self._progress = rollout_samples[0].info[PROGRESS]
        for sample in rollout_samples:
            del sample.info[GROUP], sample.info[GROUP_SIZE], sample.info[PROGRESS]
        return super().make_experience_batch(rollout_samples)

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Send the policy's actors all rewards, and give each sample its place among them; the actors make the advantages.

        Raises:
            ValueError: a reward is NaN or infinite.
        """
        for experience in experiences:
            experience.rewards = experience.rewards.float()
        apply_length_penalties(experiences, self.args)

        order_N = torch.tensor([sample for experience in experiences for sample in experience.index])
        rewards_N = torch.cat([experience.rewards for experience in experiences])
        rewards_N = torch.empty_like(rewards_N).scatter_(0, order_N, rewards_N)  # back in group order
        advantages_N = group_advantages(rewards_N, self._group_sizes, self.advantage_estimator)
        clip_range = self.args.reward.clip_range
        if clip_range:
            advantages_N = advantages_N.clamp(*clip_range)

        kl_in_reward = self.initial_model_group is not None and not self.args.algo.kl.use_loss
        kl_coef = max(self.kl_ctl.value, 0.0) if kl_in_reward else 0.0
        for experience in experiences:
            experience.info[SAMPLE] = torch.tensor(experience.index)
            experience.info["return"] = advantages_N[experience.index] - kl_coef * experience.kl.sum(dim=-1)
            if not kl_coef:
                experience.kl = None
        shift, scale = 0.0, 1.0
        if self.advantage_estimator == "reinforce_baseline":
            shift, scale = self._whitening(experiences, advantages_N, kl_coef)

        offsets_G1 = torch.tensor([0, *self._group_sizes]).cumsum(0)
        rollout = RolloutRewards(
            rewards_N, offsets_G1, self.advantage_estimator, clip_range or None, kl_coef, shift, scale
        )
        ray.get(self.actor_model_group.async_run_method("__ray_call__", receive_rollout, self._progress, rollout))
        return experiences

    def _whitening(
        self, experiences: list[Experience], advantages_N: torch.Tensor, kl_coef: float
    ) -> tuple[float, float]:
        """What every token's advantage is shifted and scaled by: mean and 1 / standard deviation over all actions.

        This is OpenRLHF's whitening of REINFORCE++.
        """
        sums = torch.zeros(3, dtype=torch.float64)  # number of actions, sum of their advantages, sum of the squares
        for experience in experiences:
            mask = experience.action_mask
            tokens = token_advantages(advantages_N[experience.index], mask, experience.kl, kl_coef)
            actions = tokens[mask.bool()].double()
            sums += torch.stack([mask.sum(), actions.sum(), actions.square().sum()])
        count, total, squares = sums.tolist()
        if not count:
            return 0.0, 1.0
        mean = total / count
        if self.args.algo.advantage.no_std_norm:
            return mean, 1.0
        return mean, max(squares / count - mean**2, 1e-8) ** -0.5


def group_sizes_of(samples: list[Experience]) -> list[int]:
    """Sizes of the groups in `samples`, whose samples stand side by side.

    Raises:
        ValueError: a group is not whole.
    """
    sizes: list[int] = []
    start = 0
    while start < len(samples):
        size = samples[start].info[GROUP_SIZE]
        group = samples[start : start + size]
        whole = len(group) == size and all(sample.info[GROUP_SIZE] == size for sample in group)
        if not whole or len({sample.info[GROUP] for sample in group}) > 1:
            raise ValueError(f"samples {start} to {start + size - 1} are not one whole group of {size}")
        sizes.append(size)
        start += size
    return sizes

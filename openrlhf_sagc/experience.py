"""The experience maker for groups of any size: rewards against their own group, the schedule at the real position."""

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

from openrlhf_sagc.advantages import group_advantages

# Info keys by which samples carry the size of their group and the share of the run's prompts used before their step.
GROUP_SIZE = "group_size"
PROGRESS = "progress"


class GroupExperienceMaker(RemoteExperienceMaker):
    """Experience maker whose group statistics follow the groups as they were dispatched, of any size."""

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        self._group_sizes = group_sizes_of(rollout_samples)
        progress = rollout_samples[0].info[PROGRESS]
        for sample in rollout_samples:
            del sample.info[GROUP_SIZE], sample.info[PROGRESS]
        ray.get(self.actor_model_group.async_run_method("__ray_call__", follow_schedule, progress))
        return super().make_experience_batch(rollout_samples)

    @torch.no_grad()
    def shape_rewards(self, experiences: list[Experience]) -> tuple[torch.Tensor, ...]:
        """Length penalties, then each sample's reward against its own group; one tensor (B,) per experience."""
        for experience in experiences:
            experience.rewards = experience.rewards.float()
        apply_length_penalties(experiences, self.args)

        batch_sizes = [len(experience.index) for experience in experiences]
        order_N = torch.tensor([index for experience in experiences for index in experience.index])
        rewards_N = torch.cat([experience.rewards for experience in experiences])
        rewards_N = torch.empty_like(rewards_N).scatter_(0, order_N, rewards_N)  # back in group order
        stds_N = torch.cat([group.std().expand(len(group)) for group in rewards_N.split(self._group_sizes)])
        for experience, stds in zip(experiences, stds_N[order_N].split(batch_sizes)):
            experience.info["group_reward_std"] = stds
        advantages_N = group_advantages(rewards_N, self._group_sizes, self.advantage_estimator)
        return advantages_N[order_N].split(batch_sizes)


def follow_schedule(model_actor, progress: float) -> None:
    """Run in a policy's actor: the rollout's first optimizer step has the learning rate of the schedule at `progress`.

    OpenRLHF lays the schedule out for all prompts at n_samples_per_prompt and moves on by one an optimizer step, which
    is too slow or too fast where a rollout takes more or fewer prompts.

    Args:
        model_actor: OpenRLHF's PolicyModelActor.
        progress: share of the run's prompts that the steps before have used, 0 to 1.
    """
    scheduler = model_actor.actor_scheduler
    position = round(progress * model_actor.max_steps)
    if position != scheduler.last_epoch:
        scheduler.last_epoch = position - 1
        scheduler.step()


def group_sizes_of(samples: list[Experience]) -> list[int]:
    """Sizes of the groups that stand side by side in `samples`.

    Raises:
        ValueError: a group is not whole.
    """
    sizes: list[int] = []
    start = 0
    while start < len(samples):
        size = samples[start].info[GROUP_SIZE]
        group = samples[start : start + size]
        whole = len(group) == size and all(sample.info[GROUP_SIZE] == size for sample in group)
        if not whole or len({sample.prompts[0] for sample in group}) > 1:
            raise ValueError(f"samples {start} to {start + size - 1} are not one whole group of {size}")
        sizes.append(size)
        start += size
    return sizes

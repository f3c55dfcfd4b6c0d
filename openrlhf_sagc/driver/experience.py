"""The experience maker for groups of any size.

It sends the policy's actors a reward for every sample, and they make the tokens' advantages.
"""

from dataclasses import dataclass
from functools import cached_property

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from openrlhf.utils.logging_utils import init_logger

from openrlhf_sagc.advantages.closed_form import group_advantages, token_advantages
from openrlhf_sagc.advantages.estimators import estimator_named
from openrlhf_sagc.config.layout import data_parallel_actors
from openrlhf_sagc.config.savings import why_forward, why_shuffled
from openrlhf_sagc.decisions.micro_batches import deal
from openrlhf_sagc.decisions.records import Group
from openrlhf_sagc.driver.samples import Sample, batch_of
from openrlhf_sagc.training.batches import Batch
from openrlhf_sagc.training.rollout_rewards import RolloutRewards, numbered
from openrlhf_sagc.training.training import StepShare, receive_rollout, uses_dropout

logger = init_logger(__name__)


@dataclass(frozen=True, slots=True)
class GroupSample:
    """A sample as `GroupExperienceMaker` wants it.

    Attributes:
        sample: tokens, reward and so on.
        group: number of its group.
        group_size: samples of the group.
        step: that it is of.
    """

    sample: Sample
    group: int
    group_size: int
    step: StepShare


class GroupExperienceMaker(RemoteExperienceMaker):
    """Experience maker whose group statistics are over the groups as they were dispatched."""

    # The step that was last sent to the actors, with the rewards and group sizes that they already have.
    _earlier: tuple[StepShare | None, torch.Tensor, list[int]] = None, torch.empty(0), []

    def make_experience_batch(self, rollout_samples: list[GroupSample]) -> list[Experience]:
        """OpenRLHF's experiences of a step's samples, or of the last of them; the actors have received their rewards.

        Raises:
            RayError: an actor could not take the rewards.
        """
        experiences = self.make_bucket(rollout_samples)
        ray.get(self.received)
        return experiences

    def make_bucket(self, rollout_samples: list[GroupSample]) -> list[Experience]:
        """The experiences of some of a step's samples; `received` has what the actors say, who may still train others."""
        self._group_sizes = group_sizes_of(rollout_samples)
        self._step = rollout_samples[0].step
        return super().make_experience_batch(rollout_samples)

    def split_rollout_samples(self, rollout_samples: list[GroupSample]) -> list[Batch]:
        """OpenRLHF's batches for the forward passes and the actors, of samples of like lengths where they are padded."""
        samples = [of_group.sample for of_group in rollout_samples]
        order_N = list(range(len(samples)))
        if not why_shuffled(self.args):
            order_N = deal([len(sample.tokens_T) for sample in samples], data_parallel_actors(self.args))
        lengths_N = torch.tensor([float(len(samples[place].tokens_T)) for place in order_N])
        cut = super().split_rollout_samples([Experience(total_length=length_1) for length_1 in lengths_N.split(1)])
        batches_of_places = [[order_N[place] for place in batch.index] for batch in cut]
        return [
            batch_of([samples[place] for place in places], places, self.tokenizer.pad_token_id)
            for places in batches_of_places
        ]

    @cached_property
    def actors_make_old_log_probs(self) -> bool:
        """Whether the actors make the old log-probabilities in their training."""
        if why_forward(self.args):
            return False
        dropout = any(ray.get(self.actor_model_group.async_run_method("__ray_call__", uses_dropout)))
        if dropout:
            logger.info(
                "a forward pass makes the old log-probabilities, and no group is streamed: training uses dropout"
            )
        return not dropout

    def _dispatch_forward(self, group, sync_condition, **kwargs):
        """OpenRLHF's forward pass of a model; zeros for the policy's where training makes them."""
        if group is not self.actor_model_group or not self.actors_make_old_log_probs:
            return super()._dispatch_forward(group, sync_condition, **kwargs)
        copies = range(self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size)
        return ray.put([[torch.zeros(mask.shape)] for mask in kwargs["action_mask"] for _ in copies])

    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """OpenRLHF's experiences; without old log-probabilities where training makes them.

        If no other model has to see the samples either, nobody reads their tokens before they are with the actors.
        """
        others = self.initial_model_group or self.critic_model_group or samples_list[0].rewards is None
        if self.actors_make_old_log_probs and not others:
            logger.info(f"the actors get {sum(len(batch.index) for batch in samples_list)} samples as they are")
            for batch in samples_list:
                batch.info |= {name: torch.zeros(len(batch.index)) for name in ("kl", "logprobs_diff")}
            return samples_list
        experiences = super().make_experience(samples_list)
        if self.actors_make_old_log_probs:
            for experience in experiences:
                experience.action_log_probs = None
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Send the policy's actors all rewards, and give each sample its place among them; the actors make the advantages.

        Rewards of the step's earlier buckets are sent again, since some of their samples may still wait in the actors.

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
        step, earlier_N, earlier_sizes = self._earlier
        if step is not self._step:
            earlier_N, earlier_sizes = rewards_N[:0], []
        for experience in experiences:
            numbered(experience, len(earlier_N))
            experience.info["return"] = advantages_N[experience.index]
            if kl_coef:
                experience.info["return"] = experience.info["return"] - kl_coef * experience.kl.sum(dim=-1)
            else:
                experience.kl = None
        shift, scale = 0.0, 1.0
        if estimator_named(self.advantage_estimator).whitens:
            shift, scale = self._whitening(experiences, advantages_N, kl_coef)

        rewards_N, sizes = torch.cat([earlier_N, rewards_N]), earlier_sizes + self._group_sizes
        self._earlier = self._step, rewards_N, sizes
        offsets_G1 = torch.tensor([0, *sizes]).cumsum(0)
        rollout = ray.put(  # once, for all actors
            RolloutRewards(rewards_N, offsets_G1, self.advantage_estimator, clip_range or None, kl_coef, shift, scale)
        )
        self.received = self.actor_model_group.async_run_method("__ray_call__", receive_rollout, self._step, rollout)
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


def stamped(groups: list[Group], step: StepShare) -> list[GroupSample]:
    """The groups' samples as the experience maker wants them."""
    return [
        GroupSample(sample, group.number, len(group.samples), step) for group in groups for sample in group.samples
    ]


def group_sizes_of(samples: list[GroupSample]) -> list[int]:
    """Sizes of the groups in `samples`, whose samples stand side by side.

    Raises:
        ValueError: a group is not whole.
    """
    sizes: list[int] = []
    start = 0
    while start < len(samples):
        size = samples[start].group_size
        group = samples[start : start + size]
        whole = len(group) == size and all(sample.group_size == size for sample in group)
        if not whole or len({sample.group for sample in group}) > 1:
            raise ValueError(f"samples {start} to {start + size - 1} are not one whole group of {size}")
        sizes.append(size)
        start += size
    return sizes

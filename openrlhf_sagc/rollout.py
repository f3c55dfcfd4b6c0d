"""The rollout scheduler: OpenRLHF's samples generator and experience maker with a group size per step.

One step: ask the controller for the size, draw prompts, dispatch them, show the controller every group that comes back,
filter, refill what was dropped, close the step with exactly batch_size * n_samples_per_prompt samples.
"""

import itertools
import math
import statistics

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm

from openrlhf_sagc.advantages import group_advantages
from openrlhf_sagc.arguments import build_controller

logger = init_logger(__name__)

GROUP_SIZE = "group_size"  # info key by which a sample carries the size its group was dispatched with


class StragglerAwareSamplesGenerator(SamplesGenerator):
    """Samples generator whose group size is chosen every step; the number of samples a step stays fixed.

    `metrics` holds the scalars of the last step for OpenRLHF's log, `max_steps` the most optimizer steps that the run
    can take (all prompts at the largest size): the learning-rate schedule is laid out for it, so a run at smaller sizes
    ends before the schedule does.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.controller = build_controller(self.args)
        self.samples_per_step = self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt
        self.metrics: dict[str, float] = {}
        most_samples = len(self.prompts_dataloader) * self.args.train.num_episodes * max(self.controller.group_sizes)
        optimizer_steps = self.samples_per_step // self.args.train.batch_size * self.args.train.max_epochs
        self.max_steps = math.ceil(most_samples / self.samples_per_step) * optimizer_steps
        self._dataloader_iter = None
        self._warned_infeasible = False

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None, int, bool]:
        """One step's rollouts: (samples, pass rate of the dynamic filter in % or None, prompts consumed, exhausted).

        `exhausted` ends the episode: no prompt is left, or the step took the last ones and filled up with prompts of
        the next episode. So every step is full and no prompt is left out.
        """
        group_size = self.controller.group_size
        num_groups = self.samples_per_step // group_size
        prompts, exhausted = self._draw_prompts(num_groups)
        if not prompts:
            return [], None, 0, True
        if exhausted:
            prompts += self._draw_prompts(num_groups - len(prompts))[0]

        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        accepted, dispatched, refills_exhausted = self._run_step(prompts, group_size, **generate_kwargs)
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")

        self.controller.observe(dispatched)
        self.metrics = step_metrics(group_size, dispatched, self.controller)
        self._warn_if_infeasible()

        samples = list(itertools.chain.from_iterable(accepted))
        filtering = self.args.algo.dynamic_filtering_enable
        pass_rate = 100 * len(accepted) / len(dispatched) if filtering else None
        return samples, pass_rate, len(dispatched), exhausted or refills_exhausted

    def _run_step(
        self, prompts: list[tuple], group_size: int, **generate_kwargs
    ) -> tuple[list[list[Experience]], list[list[int]], bool]:
        """Roll out `prompts`, and one more for each group the filter drops, until as many groups are accepted.

        Returns:
            Accepted groups, response tokens of every dispatched group, and whether the refills ended the episode.

        Raises:
            RuntimeError: the filter dropped as many groups as there are prompts in the data.
        """
        accepted: list[list[Experience]] = []
        dispatched: list[list[int]] = []
        exhausted = False
        pending = self._dispatch(prompts, group_size, **generate_kwargs)
        with tqdm(total=len(prompts), desc=f"Generate samples (group size {group_size})") as progress:
            while pending:
                ready, pending = ray.wait(pending, num_returns=1, timeout=10.0)
                for ref in ready:
                    group = [self._process_response_into_experience(r, **generate_kwargs) for r in ray.get(ref)]
                    dispatched.append([int(sample.action_mask.sum()) for sample in group])
                    if self._keep(group):
                        for sample in group:
                            sample.info[GROUP_SIZE] = group_size
                        accepted.append(group)
                        progress.update()
                        continue
                    if len(dispatched) - len(accepted) >= len(self.prompts_dataloader):
                        raise RuntimeError(
                            f"--algo.dynamic_filtering_range {list(self.args.algo.dynamic_filtering_range)} dropped "
                            f"{len(dispatched) - len(accepted)} groups in one step, as many as there are prompts, and "
                            f"left {len(accepted)} of {len(prompts)}: widen it or use prompts that are sometimes solved"
                        )
                    refill, drained = self._draw_prompts(1)
                    if drained:
                        exhausted = True
                        refill, _ = self._draw_prompts(1)
                    pending += self._dispatch(refill, group_size, **generate_kwargs)
        return accepted, dispatched, exhausted

    def _dispatch(self, prompts: list[tuple], group_size: int, **generate_kwargs) -> list[ray.ObjectRef]:
        texts, labels, images = map(list, zip(*prompts))
        return self._dispatch_prompts_to_vllm(
            texts, labels, images=images, n_samples_per_prompt=group_size, **generate_kwargs
        )

    def _draw_prompts(self, count: int) -> tuple[list[tuple], bool]:
        """Up to `count` prompts of this episode as (prompt, label, images), and whether it has ended before them all.

        The call after the end of an episode draws from the next.
        """
        if self._dataloader_iter is None:
            self._dataloader_iter = iter(self.prompts_dataloader)
        *columns, drained = _collect_prompt_batch(self._dataloader_iter, count)
        if drained:
            self._dataloader_iter = None
        return list(zip(*columns)), drained

    def _keep(self, group: list[Experience]) -> bool:
        """OpenRLHF's dynamic filter: the group's mean score lies inside the range; without scores it is kept."""
        if not self.args.algo.dynamic_filtering_enable or any(sample.scores is None for sample in group):
            return True
        low, high = self.args.algo.dynamic_filtering_range
        return low < statistics.fmean(sample.scores[0].item() for sample in group) < high

    def _warn_if_infeasible(self) -> None:
        if self.controller.feasible or self._warned_infeasible:
            return
        self._warned_infeasible = True
        logger.warning(
            f"--rollout.sagc.max_straggler_rate {self.controller.max_straggler_rate} is out of reach: even groups of "
            f"{self.controller.group_sizes[0]} are expected to exceed it (hazard {self.controller.hazard:.3f}); "
            "raise the limit or --rollout.sagc.straggler_ratio"
        )


class GroupExperienceMaker(RemoteExperienceMaker):
    """Experience maker whose group statistics follow the groups as they were dispatched, of any size."""

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        self._group_sizes = group_sizes_of(rollout_samples)
        for sample in rollout_samples:
            del sample.info[GROUP_SIZE]
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


def step_metrics(group_size: int, lengths: list[list[int]], controller) -> dict[str, float]:
    """Scalars of one step for the log.

    Args:
        group_size: size the step was dispatched with.
        lengths: response tokens of every dispatched group.
        controller: after it has observed the step.

    Returns:
        `sagc/*` from the controller, with `sagc/group_size` the step's size and `sagc/next_group_size` the choice for
        the next, and `rollout/response_length_{median,max}` in tokens and `rollout/idle_fraction`: 1 - mean / max,
        which is the share of decode slots that stand idle where all rollouts start together.
    """
    metrics = {f"sagc/{name}": value for name, value in controller.metrics().items()}
    metrics["sagc/next_group_size"] = metrics["sagc/group_size"]
    metrics["sagc/group_size"] = float(group_size)
    flat = list(itertools.chain.from_iterable(lengths))
    longest = max(flat)
    metrics["rollout/response_length_median"] = float(statistics.median(flat))
    metrics["rollout/response_length_max"] = float(longest)
    metrics["rollout/idle_fraction"] = 1 - statistics.fmean(flat) / longest if longest else 0.0
    return metrics

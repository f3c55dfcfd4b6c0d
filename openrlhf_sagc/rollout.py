"""The rollout scheduler: OpenRLHF's samples generator and experience maker with a group size per step.

One step: ask the controller for the size, draw prompts, dispatch them, show the controller every group that comes back,
filter, refill what was dropped, close the step with exactly the samples (or prompts) that it is to hold.
"""

import itertools
import statistics
from typing import NamedTuple

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
from openrlhf_sagc.timing import time_rollouts

logger = init_logger(__name__)

# Info keys by which samples carry the size of their group and the share of the run's prompts used before their step.
GROUP_SIZE = "group_size"
PROGRESS = "progress"


class Rollouts(NamedTuple):
    """One dispatched group of G rollouts."""

    tokens: list[int]  # [G] response tokens
    seconds: list[float]  # [G] from dispatch in the engine's actor to finish, without the wait in vLLM's queue
    queue_seconds: list[float]  # [G] that wait


class StragglerAwareSamplesGenerator(SamplesGenerator):
    """Samples generator whose group size is chosen every step, at a constant number of samples or of prompts.

    `metrics` holds the scalars of the last step for OpenRLHF's log.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.controller = build_controller(self.args)
        self.metrics: dict[str, float] = {}
        self._run_prompts = len(self.prompts_dataloader) * self.args.train.num_episodes
        self._dataloader_iter = None
        self._episode = 0  # episodes begun
        self._prompts_consumed = 0
        self._warned: set[str] = set()
        self._timers = [engine.__ray_call__.remote(time_rollouts) for engine in self.vllm_engines]

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None, int, bool]:
        """One step's rollouts: (samples, pass rate of the dynamic filter in % or None, prompts consumed, exhausted).

        `exhausted` ends the episode: no prompt is left, or the step took the last ones and filled up with prompts of
        the next episode. So every step is full and no prompt is left out.
        """
        ray.get(self._timers)
        group_size = self.controller.group_size
        rollout = self.args.rollout
        num_groups = rollout.batch_size
        if rollout.sagc.hold == "samples":
            num_groups = rollout.batch_size * rollout.n_samples_per_prompt // group_size
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

        samples = list(itertools.chain.from_iterable(accepted))
        for sample in samples:
            sample.info[GROUP_SIZE] = group_size
            sample.info[PROGRESS] = min(self._prompts_consumed / self._run_prompts, 1.0)
        self._prompts_consumed += len(dispatched)
        self.controller.observe([getattr(group, rollout.sagc.signal) for group in dispatched])
        self.metrics = step_metrics(group_size, dispatched, self.controller, self._longest_response())
        self._warn()

        pass_rate = 100 * len(accepted) / len(dispatched) if self.args.algo.dynamic_filtering_enable else None
        return samples, pass_rate, len(dispatched), exhausted or refills_exhausted

    def state_dict(self) -> dict:
        """What a resumed run needs besides the dataloader's own state; no rollout is undelivered between two steps."""
        return {
            **super().state_dict(),  # what a run resumed without group control needs
            "controller": self.controller.state_dict(),
            "episode": self._episode,
            "prompts_consumed": self._prompts_consumed,
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; the dataloader has been loaded before.

        Raises:
            ValueError: the checkpoint was saved without --rollout.sagc.enable, or with sizes that do not fit.
        """
        if "controller" not in state:
            raise ValueError(
                "the checkpoint was saved without --rollout.sagc.enable: resume without it, or start from its model"
            )
        self.controller.load_state_dict(state["controller"])
        self._episode = state["episode"]
        self._prompts_consumed = state["prompts_consumed"]
        super().load_state_dict(state)

    def _run_step(
        self, prompts: list[tuple], group_size: int, **generate_kwargs
    ) -> tuple[list[list[Experience]], list[Rollouts], bool]:
        """Roll out `prompts`, and one more for each group the filter drops, until as many groups are accepted.

        Returns:
            Accepted groups, the rollouts of every dispatched group, and whether the refills ended the episode.

        Raises:
            RuntimeError: the filter dropped as many groups as there are prompts in the data.
        """
        accepted: list[list[Experience]] = []
        dispatched: list[Rollouts] = []
        exhausted = False
        pending = self._dispatch(prompts, group_size, **generate_kwargs)
        with tqdm(total=len(prompts), desc=f"Generate samples (group size {group_size})") as progress:
            while pending:
                ready, pending = ray.wait(pending, num_returns=1, timeout=10.0)
                for ref in ready:
                    responses = ray.get(ref)
                    group = [self._process_response_into_experience(r, **generate_kwargs) for r in responses]
                    dispatched.append(rollouts_of(group, responses))
                    if self._keep(group):
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
            # An order by seed and episode, so that a resumed run meets later episodes in it as well.
            self.prompts_dataloader.generator.manual_seed(self.args.train.seed + self._episode)
            self._episode += 1
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

    def _longest_response(self) -> int:
        """Tokens a response may have; an upper bound for agents, whose turns share data.max_len."""
        longest = None if self.args.train.agent_func_path else self.args.rollout.max_new_tokens
        return longest or self.args.data.max_len

    def _warn(self) -> None:
        """Say once what keeps the controller from doing its work."""
        flags = self.args.rollout.sagc
        warnings = {}
        if not self.controller.feasible:
            warnings["infeasible"] = (
                f"--rollout.sagc.max_straggler_rate {flags.max_straggler_rate} is out of reach: even groups of "
                f"{self.controller.group_sizes[0]} are seen to exceed it (hazard {self.controller.hazard:.3f}); "
                "raise the limit or --rollout.sagc.straggler_ratio"
            )
        if flags.signal == "tokens" and self.metrics["sagc/length_headroom"] < flags.straggler_ratio:
            warnings["censored"] = (
                f"the longest response allowed, {self._longest_response()} tokens, is "
                f"{self.metrics['sagc/length_headroom']:.2f} times the median one, so that hardly a response can reach "
                f"--rollout.sagc.straggler_ratio {flags.straggler_ratio}: stragglers are cut off before they count; "
                "allow longer responses or lower the ratio"
            )
        for kind in warnings.keys() - self._warned:
            logger.warning(warnings[kind])
        self._warned |= warnings.keys()


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


def rollouts_of(group: list[Experience], responses: list[dict]) -> Rollouts:
    """Lengths in tokens and seconds of one group of G, from its samples and the engine's responses."""
    waits = [response["queue_seconds"] for response in responses]
    return Rollouts(
        tokens=[int(sample.action_mask.sum()) for sample in group],
        seconds=[max(response["seconds"] - wait, 0.0) for response, wait in zip(responses, waits)],
        queue_seconds=waits,
    )


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


def step_metrics(group_size: int, groups: list[Rollouts], controller, longest: int) -> dict[str, float]:
    """Scalars of one step for the log.

    Args:
        group_size: size the step was dispatched with.
        groups: every dispatched group.
        controller: after it has observed the step.
        longest: tokens a response may have.

    Returns:
        `sagc/*` from the controller, with `sagc/group_size` the step's size and `sagc/next_group_size` the choice for
        the next; `sagc/length_headroom`, `longest` over the median response; `rollout/response_length_{median,max}` in
        tokens and `rollout/seconds_{median,max}` over all rollouts, the latter without the wait in vLLM's queue, whose
        mean is `rollout/queue_seconds`; `rollout/idle_fraction`: 1 - mean / max in tokens, which is the share of
        decode slots that stand idle where all rollouts start together.
    """
    metrics = {f"sagc/{name}": value for name, value in controller.metrics().items()}
    metrics["sagc/next_group_size"] = metrics["sagc/group_size"]
    metrics["sagc/group_size"] = float(group_size)
    tokens, seconds, waits = (list(itertools.chain.from_iterable(column)) for column in zip(*groups))
    median = statistics.median(tokens)
    metrics["sagc/length_headroom"] = longest / max(median, 1)
    metrics["rollout/response_length_median"] = float(median)
    metrics["rollout/response_length_max"] = float(max(tokens))
    metrics["rollout/idle_fraction"] = 1 - statistics.fmean(tokens) / max(*tokens, 1)
    metrics["rollout/seconds_median"] = statistics.median(seconds)
    metrics["rollout/seconds_max"] = max(seconds)
    metrics["rollout/queue_seconds"] = statistics.fmean(waits)
    return metrics

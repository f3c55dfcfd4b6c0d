"""The rollout scheduler: OpenRLHF's samples generator with a group size per step and DAPO's dynamic sampling.

One step: ask the controller for the size, dispatch prompts, judge every group that comes back, dispatch more while
others still run, close the step with exactly the groups it needs, show the controller what was rolled out.
"""

import itertools
import statistics
from typing import NamedTuple

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm

from openrlhf_sagc.arguments import build_controller, build_sampler, data_parallel_actors
from openrlhf_sagc.engine import stop_rollouts, watch_rollouts
from openrlhf_sagc.experience import GROUP_SIZE, PROGRESS
from openrlhf_sagc.measurements import Rollouts, rollout_metrics, rollouts_of
from openrlhf_sagc.prompts import Prompt, PromptQueue

logger = init_logger(__name__)


class Group(NamedTuple):
    """A dispatched group; it has its samples once it is back."""

    order: int  # of dispatch
    step: int
    prompt: Prompt
    samples: list[Experience] = []


class StragglerAwareSamplesGenerator(SamplesGenerator):
    """Samples generator whose group size is chosen every step, at a constant number of samples or of prompts.

    `metrics` holds the scalars of the last step for OpenRLHF's log.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.controller = build_controller(self.args)
        self.sampler = build_sampler(self.args)
        self.queue = PromptQueue(self.prompts_dataloader, self.args.train.seed)
        self.metrics: dict[str, float] = {}
        self._keep_surplus = self.args.algo.dynamic_filtering_surplus == "keep"
        self._run_prompts = len(self.prompts_dataloader) * self.args.train.num_episodes
        self._prompts_consumed = 0
        self._steps = 0
        self._dispatched = 0
        self._running: dict[ray.ObjectRef, Group] = {}
        self._accepted: list[Group] = []
        self._lengths: list[Rollouts] = []  # of the step's groups that came back whole
        self._aborted_tokens = 0
        self._failures: list[str] = []  # of the step's rewards
        self._paused = False
        self._warned: set[str] = set()
        reward = self.args.reward
        self._watching = [
            engine.__ray_call__.remote(watch_rollouts, timeout=reward.timeout, retries=reward.retries)
            for engine in self.vllm_engines
        ]

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None, int, bool]:
        """One step's rollouts: (samples, pass rate of the dynamic filter in % or None, prompts consumed, exhausted).

        `exhausted` ends the episode: each of its prompts was trained or dropped. A step that takes the last ones fills
        up with prompts of the next episode, so that every step is full.

        Raises:
            RuntimeError: too many rewards failed, or the groups that a step may dispatch did not fill it.
        """
        ray.get(self._watching)
        group_size = self.controller.group_size
        self._lengths, self._failures, self._aborted_tokens = [], [], 0
        carried = len(self._accepted) + len(self._running)
        self.sampler.begin(
            self._groups_a_step(group_size), group_size, accepted=len(self._accepted), in_flight=len(self._running)
        )
        prompts = self.queue.draw(self.sampler.decide(), cross=carried > 0)
        if not prompts and not carried:
            return [], None, 0, self.queue.close_episode([])

        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        self._resume()
        self._run_step(prompts, **generate_kwargs)
        if not self._keep_surplus:
            self._stop_running(**generate_kwargs)
        signal = self.args.rollout.sagc.signal
        self.controller.observe([getattr(group, signal) for group in self._lengths])
        if self.controller.group_size != group_size:
            self._stop_running(**generate_kwargs)  # the groups of a step have one size
        self._pause()
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")

        trained, surplus = self._close_step()
        self._accepted = surplus if self._keep_surplus and self.controller.group_size == group_size else []
        discarded = surplus[len(self._accepted) :]
        for group in discarded:
            self.queue.put_back(group.prompt)
        samples = list(itertools.chain.from_iterable(group.samples for group in trained))
        for sample in samples:
            sample.info[GROUP_SIZE] = group_size
            sample.info[PROGRESS] = min(self._prompts_consumed / self._run_prompts, 1.0)
        consumed = len(trained) + self.sampler.dropped.total()
        self._prompts_consumed += consumed
        self._set_metrics(group_size, trained, len(discarded))
        self._warn()
        self._steps += 1
        self.sampler.end()
        pass_rate = self.sampler.pass_rate if self.args.algo.dynamic_filtering_enable else None
        under_way = [group.prompt for group in [*self._accepted, *self._running.values()]]
        return samples, pass_rate, consumed, self.queue.close_episode(under_way)

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs) -> list[Experience]:
        """Samples of the evaluation prompts, without the prompts on which the reward failed.

        Raises:
            RuntimeError: too many rewards failed.
        """
        ray.get(self._watching)
        self._failures = []
        self._resume()
        samples = super().generate_eval_samples(**generate_kwargs)
        self._pause()
        self._check_rewards(len(samples))
        size = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        groups = [samples[start : start + size] for start in range(0, len(samples), size)]
        return [sample for group in groups if all(sample is not None for sample in group) for sample in group]

    def state_dict(self) -> dict:
        """What a resumed run needs besides the dataloader's own state; prompts of running groups are put back."""
        running = [group.prompt for group in self._running.values()]
        return {
            "sample_buffer": [],  # for a run resumed without group control
            **self.queue.state_dict(running),
            "controller": self.controller.state_dict(),
            "sampler": self.sampler.state_dict(),
            "steps": self._steps,
            "dispatched": self._dispatched,
            "prompts_consumed": self._prompts_consumed,
            "accepted": [tuple(group) for group in self._accepted],
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
        self.sampler.load_state_dict(state["sampler"])
        self.queue.load_state_dict(state)
        self._steps = state["steps"]
        self._dispatched = state["dispatched"]
        self._prompts_consumed = state["prompts_consumed"]
        self._accepted = [
            Group(order, step, Prompt(*prompt), samples) for order, step, prompt, samples in state["accepted"]
        ]

    def _groups_a_step(self, group_size: int) -> int:
        rollout = self.args.rollout
        if rollout.sagc.hold == "prompts":
            return rollout.batch_size
        return rollout.batch_size * rollout.n_samples_per_prompt // group_size

    def _run_step(self, prompts: list[Prompt], **generate_kwargs) -> None:
        """Roll out `prompts`, and more as the sampler asks, until the step is full or may not ask for more.

        Prompts that are owed are waited for: else the slowest would be put off again and again.
        """
        total = self.sampler.num_groups
        with tqdm(total=total, desc=f"Generate samples (group size {self.sampler.group_size})") as progress:
            self._dispatch(prompts, **generate_kwargs)
            while self._running:
                if self.sampler.full and not any(group.prompt.owed for group in self._running.values()):
                    break
                ready, _ = ray.wait(list(self._running), num_returns=1, timeout=10.0)
                for ref in ready:
                    self._take_back(ref, **generate_kwargs)
                self._dispatch(self.queue.draw(self.sampler.decide(), cross=True), **generate_kwargs)
                progress.update(min(self.sampler.accepted, total) - progress.n)

    def _dispatch(self, prompts: list[Prompt], **generate_kwargs) -> None:
        if not prompts:
            return
        texts, labels, images, *_ = map(list, zip(*prompts))
        size = self.sampler.group_size
        refs = self._dispatch_prompts_to_vllm(
            texts, labels, images=images, n_samples_per_prompt=size, **generate_kwargs
        )
        for ref, prompt in zip(refs, prompts):
            self._running[ref] = Group(self._dispatched, self._steps, prompt)
            self._dispatched += 1

    def _take_back(self, ref: ray.ObjectRef, **generate_kwargs) -> None:
        """Measure and judge a group that is back; the prompt of a stopped one is put back, and measured then."""
        group = self._running.pop(ref)
        responses = ray.get(ref)
        if any(response["stopped"] for response in responses):
            self._aborted_tokens += sum(response["tokens"] for response in responses)
            self.sampler.withdraw()
            self.queue.put_back(group.prompt)
            return
        self._lengths.append(rollouts_of(responses))
        samples = [self._process_response_into_experience(response, **generate_kwargs) for response in responses]
        if self.sampler.observe([raw_score(sample) for sample in samples]) is None:
            self._accepted.append(group._replace(samples=samples))
        self._check_rewards(self.sampler.num_groups * self.sampler.group_size)

    def _process_response_into_experience(self, response: dict, **generate_kwargs) -> Experience | None:
        """OpenRLHF's, or None for a sample whose reward failed."""
        if response["failure"]:
            self._failures.append(response["failure"])
            return None
        return super()._process_response_into_experience(response, **generate_kwargs)

    def _stop_running(self, **generate_kwargs) -> None:
        while self._running:  # again for a group whose call reached its engine after the stop
            ray.get([engine.__ray_call__.remote(stop_rollouts) for engine in self.vllm_engines])
            ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=1.0)
            for ref in ready:
                self._take_back(ref, **generate_kwargs)

    def _resume(self) -> None:
        if self._paused:
            batch_vllm_engine_call(self.vllm_engines, "resume_generation")
        self._paused = False

    def _pause(self) -> None:
        """Nothing is generated while the weights change; with partial rollouts the trainer sees to that."""
        self._paused = bool(self._running) and not self.args.train.partial_rollout_enable
        if self._paused:
            batch_vllm_engine_call(self.vllm_engines, "pause_generation")

    def _close_step(self) -> tuple[list[Group], list[Group]]:
        """The groups to train and those beyond, both in the order of dispatch.

        Raises:
            RuntimeError: there are too few.
        """
        needed = self.sampler.num_groups
        groups = sorted(self._accepted, key=lambda group: group.order)
        if len(groups) < needed:
            algo, sampler = self.args.algo, self.sampler
            enough = len(groups) * sampler.group_size >= data_parallel_actors(self.args)
            if algo.dynamic_filtering_at_cap == "fail" or not enough:
                reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in sampler.dropped.items())
                advice = "" if algo.dynamic_filtering_at_cap == "keep" else ", or --algo.dynamic_filtering_at_cap keep"
                raise RuntimeError(
                    f"--algo.dynamic_filtering_max_gen_batches {algo.dynamic_filtering_max_gen_batches} reached: "
                    f"{sampler.dispatched} prompts of {sampler.group_size} samples gave {len(groups)} of the {needed} "
                    f"groups of step {self._steps + 1} (dropped: {reasons}): use prompts that are solved sometimes{advice}"
                )
        return groups[:needed], groups[needed:]

    def _check_rewards(self, num_samples: int) -> None:
        """Say once that a reward failed, and stop where more than the allowed share of `num_samples` have none."""
        if not self._failures:
            return
        reward, agent = self.args.reward, self.args.train.agent_func_path
        source = f"--train.agent_func_path {agent}" if agent else f"--reward.remote_url {','.join(reward.remote_url)}"
        message = (
            f"{source}: {len(self._failures)} of {num_samples} samples have no reward after {reward.retries + 1} "
            f"attempts, first: {self._failures[0]}"
        )
        if len(self._failures) > reward.max_failure_share * num_samples:
            raise RuntimeError(f"{message}; --reward.max_failure_share {reward.max_failure_share:g} allows fewer")
        if "reward" not in self._warned:
            logger.warning(message)
        self._warned.add("reward")

    def _set_metrics(self, group_size: int, trained: list[Group], discarded: int) -> None:
        ages = [self._steps - group.step for group in trained]
        sampling = {
            **self.sampler.metrics(),
            "aborted_tokens": self._aborted_tokens,
            "discarded": discarded,
            "kept": len(self._accepted),
            "kept_running": len(self._running),
            "queued_prompts": len(self.queue),
            "age_mean": statistics.fmean(ages),
            "age_max": max(ages),
            "missing": self.sampler.num_groups - len(trained),
        }
        self.metrics = {
            **{f"sagc/{name}": value for name, value in self.controller.metrics().items()},
            "sagc/next_group_size": float(self.controller.group_size),
            "sagc/group_size": float(group_size),
            **{f"dynamic_filtering/{name}": float(value) for name, value in sampling.items()},
            "rollout/reward_failures": float(len(self._failures)),
        }
        if self._lengths:
            self.metrics |= rollout_metrics(self._lengths, self._longest_response())

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
        headroom = self.metrics.get("sagc/length_headroom", flags.straggler_ratio)
        if flags.signal == "tokens" and headroom < flags.straggler_ratio:
            warnings["censored"] = (
                f"the longest response allowed, {self._longest_response()} tokens, is {headroom:.2f} times the median "
                f"one, so that hardly a response can reach --rollout.sagc.straggler_ratio {flags.straggler_ratio}: stragglers are cut off before they count; "
                "allow longer responses or lower the ratio"
            )
        for kind in warnings.keys() - self._warned:
            logger.warning(warnings[kind])
        self._warned |= warnings.keys()


def raw_score(sample: Experience | None) -> float | None:
    """What dynamic sampling judges: the score, before any shaping; 0 where a reward model gives it later."""
    if sample is None:
        return None
    score = sample.rewards if sample.scores is None else sample.scores
    return 0.0 if score is None else score.item()

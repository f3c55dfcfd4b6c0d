"""The rollout scheduler: OpenRLHF's samples generator with group control, dynamic sampling and tail batching.

One step: ask the controller for the size and the tail batcher for the kind of round, dispatch prompts, judge every group
that comes back, dispatch more while others still run, close the step with exactly the groups it needs, stop the rest
and queue their prompts, show the controller what was rolled out.
"""

import math
import statistics
from collections.abc import Iterable
from typing import NamedTuple

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm

from openrlhf_sagc.argument_checks import data_parallel_actors
from openrlhf_sagc.arguments import build_batcher, build_controller, build_sampler
from openrlhf_sagc.engine import keep_first, stop_rollouts, watch_rollouts
from openrlhf_sagc.experience import GROUP_SIZE, PROGRESS
from openrlhf_sagc.length_prediction import LengthPredictor, balance
from openrlhf_sagc.measurements import Rollouts, control_warnings, rollout_metrics, rollouts_of
from openrlhf_sagc.prompts import Prompt, PromptQueue
from openrlhf_sagc.reward_failures import RewardFailures
from openrlhf_sagc.tail_batching import Round

logger = init_logger(__name__)

WAIT = 10.0  # seconds for a group, at a time
SILENCE = 60  # such waits without one, of which the log warns


class Group(NamedTuple):
    """A dispatched group; it has its samples once it is back."""

    order: int  # of dispatch
    step: int
    prompt: Prompt
    samples: list[Experience] = []
    engine: int = -1  # where the scheduler has chosen it
    load: float = 0.0  # expected tokens


class Step(list[Experience]):
    """A step's samples, with the scalars that its log is to have."""

    def __init__(self, samples: Iterable[Experience], metrics: dict[str, float]):
        super().__init__(samples)
        self.metrics = metrics


class StragglerAwareSamplesGenerator(SamplesGenerator):
    """Samples generator whose group size is chosen every step, at a constant number of samples or of prompts.

    `metrics` holds the scalars of the last step for OpenRLHF's log.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.controller = build_controller(self.args)
        self.sampler = build_sampler(self.args)
        self.batcher = build_batcher(self.args)
        self.predictor = LengthPredictor() if self.args.rollout.length_aware_dispatch else None
        self.queue = PromptQueue(self.prompts_dataloader, self.args.train.seed)
        self.metrics: dict[str, float] = {}
        self._keep_surplus = self.args.algo.dynamic_filtering_surplus == "keep"
        self._run_prompts = len(self.prompts_dataloader) * self.args.train.num_episodes
        self._prompts_consumed = 0
        self._steps = 0
        self._dispatched = 0
        self._running: dict[ray.ObjectRef, Group] = {}
        self._accepted: list[Group] = []
        self._carried = 0  # groups that ran when the step began
        self._round = Round(True, 1.0, 0)
        self._keep: int | None = None  # rollouts of a prompt that end the others, as the engines know it
        self._lengths: list[Rollouts] = []  # of groups that came back, for the controller
        self._aborted_tokens = 0
        self._failures = RewardFailures(self.args, logger.warning)
        self._paused = False
        self._single_engines = [
            SamplesGenerator(self.strategy, None, None, self.tokenizer, [engine]) for engine in self.vllm_engines
        ]
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
        self._failures.begin()
        self._aborted_tokens = 0
        self._begin(group_size)
        carried = len(self._accepted) + len(self._running)
        prompts = self._draw(cross=carried > 0)
        if not prompts and not carried:
            return [], None, 0, self.queue.close_episode([])

        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        self._keep_first(group_size if self._round.rollouts > group_size else None)
        self._resume()
        self._run_step(prompts, **generate_kwargs)
        if not self._keep_surplus:
            self._stop_running(**generate_kwargs)
        lengths = self._show_controller()
        if self.controller.group_size != group_size:
            self._stop_running(**generate_kwargs)  # the groups of a step have one size
        self._pause()
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")

        trained, surplus = self._close_step()
        keep = self._keep_surplus and self.controller.group_size == group_size
        discarded = [group for group in surplus if not keep or group.step < self._steps]
        self._accepted = [group for group in surplus if keep and group.step == self._steps]
        for group in discarded:
            self.queue.put_back(group.prompt)
        if self.batcher:
            self.batcher.observe(len(self.queue))
        samples = [sample for group in trained for sample in group.samples]
        for sample in samples:
            sample.info[GROUP_SIZE] = group_size
            sample.info[PROGRESS] = min(self._prompts_consumed / self._run_prompts, 1.0)
        consumed = len(trained) + self.sampler.dropped.total()
        self._prompts_consumed += consumed
        self._set_metrics(group_size, lengths, trained, len(discarded))
        self._warn()
        self._steps += 1
        self.sampler.end()
        pass_rate = self.sampler.pass_rate if self.args.algo.dynamic_filtering_enable else None
        under_way = [group.prompt for group in [*self._accepted, *self._running.values()]]
        return Step(samples, self.metrics), pass_rate, consumed, self.queue.close_episode(under_way)

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs) -> list[Experience]:
        """Samples of the evaluation prompts, without the prompts on which the reward failed.

        Raises:
            RuntimeError: too many rewards failed.
        """
        ray.get(self._watching)
        self._failures.begin()
        self._keep_first(None)
        self._resume()
        samples = super().generate_eval_samples(**generate_kwargs)
        self._pause()
        self._failures.check(len(samples))
        size = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        groups = [samples[start : start + size] for start in range(0, len(samples), size)]
        return [sample for group in groups if all(sample is not None for sample in group) for sample in group]

    def state_dict(self) -> dict:
        """What a resumed run needs, under the names that the trainer's checkpoint has; running groups are put back."""
        running = [group.prompt for group in self._running.values()]
        state = {
            **self.queue.state_dict(running),
            "controller": self.controller.state_dict(),
            "sampler": self.sampler.state_dict(),
            "batcher": self.batcher.state_dict() if self.batcher else None,
            "predictor": self.predictor.state_dict() if self.predictor else None,
            "steps": self._steps,
            "dispatched": self._dispatched,
            "prompts_consumed": self._prompts_consumed,
            "accepted": [tuple(group[:4]) for group in self._accepted],
            "lengths": [tuple(group) for group in self._lengths],
        }
        dataloader = None if state["drained"] else self.prompts_dataloader.state_dict()
        return {"samples_generator": state, "data_loader_state_dict": dataloader}

    def load_state_dict(self, checkpoint_states: dict) -> None:
        """Go on from a checkpoint with what `state_dict()` gave.

        Raises:
            ValueError: the checkpoint was saved without this generator, or with sizes that do not fit.
        """
        state = checkpoint_states.get("samples_generator", {})
        if "controller" not in state:
            raise ValueError(
                "the checkpoint was saved without --rollout.sagc.enable or --rollout.tail_batching.enable: resume without "
                "them, or start from its model"
            )
        if not state["drained"]:
            self.prompts_dataloader.load_state_dict(checkpoint_states["data_loader_state_dict"])
        self.controller.load_state_dict(state["controller"])
        self.sampler.load_state_dict(state["sampler"])
        if self.batcher and state["batcher"]:
            self.batcher.load_state_dict(state["batcher"])
        if self.predictor and state["predictor"]:
            self.predictor.load_state_dict(state["predictor"])
        self.queue.load_state_dict(state)
        self._steps = state["steps"]
        self._dispatched = state["dispatched"]
        self._prompts_consumed = state["prompts_consumed"]
        self._accepted = [
            Group(order, step, Prompt(*prompt), samples) for order, step, prompt, samples in state["accepted"]
        ]
        self._lengths = [Rollouts(*group) for group in state["lengths"]]

    def _begin(self, group_size: int) -> None:
        """Open a step; without tail batching every round is one that leaves no prompt behind twice."""
        rollout = self.args.rollout
        needed = rollout.batch_size
        if rollout.sagc.hold == "samples":
            needed = rollout.batch_size * rollout.n_samples_per_prompt // group_size
        self._round = Round(True, 1.0, group_size)
        if self.batcher:
            waiting, drained = len(self.queue), self.queue.drained
            self._round = self.batcher.decide(needed, group_size, waiting=waiting, drained=drained)
        self._carried = len(self._running)
        self.sampler.begin(
            needed,
            group_size,
            accepted=len(self._accepted),
            in_flight=self._carried,
            over_dispatch=self._round.prompt_ratio,
        )

    def _run_step(self, prompts: list[Prompt], **generate_kwargs) -> None:
        """Roll out `prompts`, and more as the sampler asks, until the step is full or may not ask for more.

        Prompts that are owed are waited for, else the slowest would be put off again and again, and groups that were kept
        running, else they would be trained more than one update late.
        """
        total, silence = self.sampler.num_groups, 0
        with tqdm(total=total, desc=f"Generate samples (group size {self.sampler.group_size})") as progress:
            self._dispatch(prompts, **generate_kwargs)
            while self._running:
                late = (group.prompt.owed or group.step < self._steps for group in self._running.values())
                if self.sampler.full and not any(late):
                    break
                ready, _ = ray.wait(list(self._running), num_returns=1, timeout=WAIT)
                silence = 0 if ready else silence + 1
                if silence == SILENCE:
                    self._warn_of_silence()
                for ref in ready:
                    self._take_back(ref, **generate_kwargs)
                self._dispatch(self._draw(cross=True), **generate_kwargs)
                progress.update(min(self.sampler.accepted, total) - progress.n)

    def _warn_of_silence(self) -> None:
        first = min(self._running.values(), key=lambda group: group.order)
        logger.warning(
            f"no group of step {self._steps + 1} has come back for {WAIT * SILENCE / 60:.0f} minutes, {len(self._running)} "
            f"are waited for: very long responses, or an agent or tool that hangs; the first prompt is "
            f"{first.prompt.text!r:.200}"
        )

    def _draw(self, *, cross: bool) -> list[Prompt]:
        """As many prompts as the sampler asks for; of those that are owed no more than the step can train."""
        under_way = sum(group.prompt.owed for group in [*self._accepted, *self._running.values()])
        waiting = max(self.sampler.num_groups - under_way, 0) if self._round.long else 0
        return self.queue.draw(self.sampler.decide(), cross=cross, waiting=waiting)

    def _dispatch(self, prompts: list[Prompt], **generate_kwargs) -> None:
        if not prompts:
            return
        groups = [Group(self._dispatched + i, self._steps, prompt) for i, prompt in enumerate(prompts)]
        self._dispatched += len(groups)
        shares = [(self, groups)] if self.predictor is None else self._shares(groups)
        for generator, share in shares:
            texts, labels, images, *_ = map(list, zip(*(group.prompt for group in share)))
            refs = generator._dispatch_prompts_to_vllm(
                texts, labels, images=images, n_samples_per_prompt=self._round.rollouts, **generate_kwargs
            )
            self._running |= zip(refs, share)

    def _shares(self, groups: list[Group]) -> list[tuple[SamplesGenerator, list[Group]]]:
        """Every engine's generator with the groups it is to run, the long ones first."""
        loads = [0.0] * len(self._single_engines)
        for group in self._running.values():
            loads[group.engine] += group.load
        assert self.predictor is not None
        expected = [self._round.rollouts * self.predictor.predict(group.prompt.text) for group in groups]
        shares: list[tuple[SamplesGenerator, list[Group]]] = [(generator, []) for generator in self._single_engines]
        for index, engine in balance(loads, expected):
            shares[engine][1].append(groups[index]._replace(engine=engine, load=expected[index]))
        return [(generator, share) for generator, share in shares if share]

    def _take_back(self, ref: ray.ObjectRef, **generate_kwargs) -> None:
        """Measure and judge a group that is back; the prompt of a stopped one is put back.

        Of more rollouts than a group has, the first to finish are the group.
        """
        group = self._running.pop(ref)
        size, dispatched = self.sampler.group_size, ray.get(ref)
        responses = sorted(dispatched, key=order_of_finish)[:size] if len(dispatched) > size else dispatched
        self._lengths.append(rollouts_of(responses))
        if self.predictor:
            self.predictor.observe(group.prompt.text, self._lengths[-1].tokens, self._lengths[-1].stopped)
        self._aborted_tokens += sum(response["tokens"] for response in dispatched)
        for response in dispatched:
            if response["failure"] and all(response is not member for member in responses):
                self._failures.observe(response["failure"])
        if any(response["stopped"] for response in responses):
            self.sampler.withdraw()
            self.queue.put_back(group.prompt)
            return
        self._aborted_tokens -= sum(response["tokens"] for response in responses)
        samples = [self._process_response_into_experience(response, **generate_kwargs) for response in responses]
        if self.sampler.observe([raw_score(sample) for sample in samples]) is None:
            self._accepted.append(group._replace(samples=samples))
        dispatched = max(self._carried + self.sampler.dispatched, self.sampler.num_groups)
        self._failures.check(dispatched * self._round.rollouts)

    def _process_response_into_experience(self, response: dict, **generate_kwargs) -> Experience | None:
        """OpenRLHF's, or None for a sample whose reward failed."""
        if response["failure"]:
            self._failures.observe(response["failure"])
            return None
        return super()._process_response_into_experience(response, **generate_kwargs)

    def _stop_running(self, **generate_kwargs) -> None:
        while self._running:  # again for a group whose call reached its engine after the stop
            ray.get([engine.__ray_call__.remote(stop_rollouts) for engine in self.vllm_engines])
            ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=1.0)
            for ref in ready:
                self._take_back(ref, **generate_kwargs)

    def _keep_first(self, count: int | None) -> None:
        if count != self._keep:
            ray.get([engine.__ray_call__.remote(keep_first, count) for engine in self.vllm_engines])
        self._keep = count

    def _show_controller(self) -> list[Rollouts]:
        """What it was shown; groups that are stopped from here on count in the next step."""
        lengths, self._lengths = self._lengths, []
        signal = self.args.rollout.sagc.signal
        self.controller.observe([getattr(group, signal) for group in lengths], [group.stopped for group in lengths])
        return lengths

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
        """The groups to train and those beyond, owed ones first and else in the order of dispatch.

        Raises:
            RuntimeError: there are too few.
        """
        needed = self.sampler.num_groups
        groups = sorted(self._accepted, key=lambda group: (not group.prompt.owed, group.order))
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

    def _set_metrics(self, group_size: int, lengths: list[Rollouts], trained: list[Group], discarded: int) -> None:
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
        if self.batcher:
            self.metrics |= {f"tail_batching/{name}": value for name, value in self.batcher.metrics().items()}
        self.metrics |= rollout_metrics(lengths, self._longest_response())

    def _longest_response(self) -> int:
        """Tokens a response may have; an upper bound for agents, whose turns share data.max_len."""
        longest = None if self.args.train.agent_func_path else self.args.rollout.max_new_tokens
        return longest or self.args.data.max_len

    def _warn(self) -> None:
        """Say once what keeps the controller from doing its work."""
        if not self.args.rollout.sagc.enable:  # tail batching alone
            return
        headroom = self.metrics.get("sagc/length_headroom", math.inf)
        warnings = control_warnings(self.controller, self.args.rollout.sagc.signal, headroom, self._longest_response())
        for kind in warnings.keys() - self._warned:
            logger.warning(warnings[kind])
        self._warned |= warnings.keys()


def order_of_finish(response: dict) -> tuple[bool, bool, float]:
    """Sorts rollouts of a prompt: with a reward, in the order of time; stopped; without a reward."""
    return response["failure"] is not None, response["stopped"], response["seconds"]


def raw_score(sample: Experience | None) -> float | None:
    """What dynamic sampling judges: the score, before any shaping; 0 where a reward model gives it later."""
    if sample is None:
        return None
    score = sample.rewards if sample.scores is None else sample.scores
    return 0.0 if score is None else score.item()

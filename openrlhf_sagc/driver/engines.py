"""The vLLM engines in their Ray actors: groups are sent to them, waited for and stopped."""

from collections.abc import Iterator
from itertools import groupby

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from openrlhf_sagc.actors.rollouts import keep_first, stop_rollouts, watch_rollouts
from openrlhf_sagc.decisions.records import Group

WAIT = 10.0  # seconds to wait for a group before looking around
STOP_WAIT = 1.0  # seconds to wait for stopped groups before stopping again


class Engines:
    """All engines of the run.

    A step is `wake`, `resume`, then `dispatch`, `returned` and `stop` in any order, then `pause` and `sleep`.
    `silent_waits` counts the waits in a row that no group came back in.

    Args:
        strategy, tokenizer, vllm_engines: as of OpenRLHF's samples generator.
    """

    def __init__(self, strategy, tokenizer, vllm_engines: list) -> None:
        self.silent_waits = 0
        self._args = strategy.args
        self._engines = vllm_engines
        self._all = SamplesGenerator(strategy, None, None, tokenizer, vllm_engines)
        self._each = [SamplesGenerator(strategy, None, None, tokenizer, [engine]) for engine in vllm_engines]
        self._numbers: dict[ray.ObjectRef, int] = {}  # of the groups that run
        self._keep_first: int | None = None  # as the engines know it
        self._is_paused = False
        reward = self._args.reward
        self._watching = self._call(watch_rollouts, timeout=reward.timeout, retries=reward.retries)

    def wake(self) -> None:
        """Bring engines back that sleep between steps."""
        if self._args.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "wake_up")

    def resume(self, keep_first_rollouts: int | None) -> None:
        """Go on generating after `pause`.

        Of the rollouts of a prompt that is dispatched from now on, the first `keep_first_rollouts` to finish with a
        reward stop the others; None lets all of them finish.
        """
        ray.get(self._watching)
        if keep_first_rollouts != self._keep_first:
            ray.get(self._call(keep_first, keep_first_rollouts))
        self._keep_first = keep_first_rollouts
        self.silent_waits = 0
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "resume_generation")
        self._is_paused = False

    def dispatch(self, groups: list[Group], rollouts: int, **generate_kwargs) -> None:
        """Send groups to their engines, with `rollouts` for each prompt; OpenRLHF places those that have no engine."""
        for engine, share in groupby(sorted(groups, key=lambda group: group.engine), key=lambda group: group.engine):
            sent = list(share)
            generator = self._all if engine < 0 else self._each[engine]
            refs = generator._dispatch_prompts_to_vllm(
                [group.prompt.text for group in sent],
                [group.prompt.label for group in sent],
                images=[group.prompt.images for group in sent],
                n_samples_per_prompt=rollouts,
                **generate_kwargs,
            )
            self._numbers |= zip(refs, (group.number for group in sent))

    def returned(self) -> list[tuple[int, list[dict]]]:
        """Wait for a group: its number and OpenRLHF's responses; nothing if none came back within WAIT seconds."""
        ready, _ = ray.wait(list(self._numbers), num_returns=1, timeout=WAIT)
        self.silent_waits = 0 if ready else self.silent_waits + 1
        return [self._take(ref) for ref in ready]

    def stop(self) -> Iterator[tuple[int, list[dict]]]:
        """Stop all that runs: the numbers and responses of the groups, some of which may have finished meanwhile."""
        while self._numbers:  # again, since a call may reach its engine after the stop
            ray.get(self._call(stop_rollouts))
            ready, _ = ray.wait(list(self._numbers), num_returns=len(self._numbers), timeout=STOP_WAIT)
            for ref in ready:
                yield self._take(ref)

    def pause(self) -> None:
        """Generate nothing while the weights change; with partial rollouts the trainer itself sees to that."""
        self._is_paused = bool(self._numbers) and not self._args.train.partial_rollout_enable
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "pause_generation")

    def sleep(self) -> None:
        """Let the engines free their memory for the training, if the run has them do that."""
        if self._args.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "sleep")

    def _call(self, function, *args, **kwargs) -> list:
        """Run `function` inside every engine's actor."""
        return [engine.__ray_call__.remote(function, *args, **kwargs) for engine in self._engines]

    def _take(self, ref: ray.ObjectRef) -> tuple[int, list[dict]]:
        return self._numbers.pop(ref), ray.get(ref)

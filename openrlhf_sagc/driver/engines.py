"""The vLLM engines in their Ray actors: groups are sent to them, waited for and stopped."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger

from openrlhf_sagc.actors.rollouts import keep_first, stop_rollouts, watch_rollouts
from openrlhf_sagc.decisions.records import ROLLOUT, Group, Rollout
from openrlhf_sagc.driver.step_seconds import RunningRollouts

logger = init_logger(__name__)
T = TypeVar("T")

WAIT = 10.0  # seconds to wait for a group before looking around
STOP_WAIT = 1.0  # seconds to wait for stopped groups before stopping again
STOPS_BEFORE_WARNING = 60  # stops in a row that no group came back after
STOPS_BEFORE_END = 600  # of them before the run ends
MOST_CALLS = 500  # groups at a time for each engine: half of the calls that Ray allows an actor, the rest is for stops
NOT_STARTED: dict[str, Any] = {ROLLOUT: Rollout(0, 0.0, 0.0, finished=False, stopped=True, failure=None)}


class Engines:
    """All engines of the run.

    A step is `wake`, `resume`, then `dispatch`, `returned` and `stop` in any order, then `pause` and `sleep`.
    `silent_waits` counts the waits in a row that no group came back in, and `idle_waits` those of them after which no
    engine had a request to decode. `rollouts` knows when rollouts ran since `resume`.

    Args:
        strategy, tokenizer, vllm_engines: as of OpenRLHF's samples generator.
    """

    def __init__(self, strategy, tokenizer, vllm_engines: list) -> None:
        self.silent_waits = self.idle_waits = 0
        self.rollouts = RunningRollouts()
        self._args = strategy.args
        self._engines = vllm_engines
        # Without a tokenizer, which Ray would send with every call: the engines keep the one that they get here.
        self._all = SamplesGenerator(strategy, None, None, None, vllm_engines)
        self._each = [SamplesGenerator(strategy, None, None, None, [engine]) for engine in vllm_engines]
        self._running: dict[int, int] = {}  # group number -> engine it was sent to, -1 where OpenRLHF placed it
        self._calls: Counter[int] = Counter()  # groups that run, by engine
        self._held: dict[int, deque[Group]] = {}  # groups to send later, by engine
        self._back: SimpleQueue[tuple[int, Future]] = SimpleQueue()
        self._generate_kwargs: dict[str, Any] = {}  # of the groups that are held
        self._keep_first: int | None = None  # as the engines know it
        self._is_paused = False
        reward = self._args.reward
        limits = {"timeout": reward.timeout, "retries": reward.retries}
        limits["agent_timeout"] = self._args.rollout.agent_timeout
        self._watching = self._call(watch_rollouts, tokenizer=tokenizer, **limits)

    def wake(self) -> None:
        """Bring engines back that sleep between steps."""
        if self._args.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "wake_up")

    def resume(self, keep_first_rollouts: int | None) -> None:
        """Go on generating after `pause`.

        Of the rollouts of a prompt that is dispatched from now on, the first `keep_first_rollouts` to finish with a
        reward stop the others; None lets all of them finish.
        """
        self._get(self._watching)
        if keep_first_rollouts != self._keep_first:
            self._get(self._call(keep_first, keep_first_rollouts))
        self._keep_first = keep_first_rollouts
        self.rollouts.begin()
        self.silent_waits = self.idle_waits = 0
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "resume_generation")
        self._is_paused = False

    def dispatch(self, groups: list[Group], **generate_kwargs) -> None:
        """Send groups to their engines; OpenRLHF places those that have no engine.

        Groups beyond MOST_CALLS an engine are held back until others return.
        """
        self._generate_kwargs = generate_kwargs
        for group in groups:
            self._held.setdefault(group.engine, deque()).append(group)
        for engine in sorted({group.engine for group in groups}):
            self._send(engine)

    def returned(self) -> list[tuple[int, list[dict]]]:
        """Wait for a group: its number and OpenRLHF's responses; nothing if none came back within WAIT seconds.

        Raises:
            RuntimeError: an engine has died.
        """
        back = self._next(WAIT)
        self.silent_waits = 0 if back else self.silent_waits + 1
        self.idle_waits = 0 if back or self._are_decoding() else self.idle_waits + 1
        return back

    def stop(self) -> Iterator[tuple[int, list[dict]]]:
        """Stop all that runs: the numbers and responses of the groups, some of which may have finished meanwhile.

        Raises:
            RuntimeError: an engine has died, or groups have not come back after STOPS_BEFORE_END stops.
        """
        for held in self._held.values():
            while held:
                group = held.popleft()
                yield group.number, [NOT_STARTED] * group.rollouts
        silent = 0
        while self._running:  # again, since a call may reach its engine after the stop
            with suppress(ray.exceptions.GetTimeoutError):
                self._get(self._call(stop_rollouts), timeout=STOP_WAIT)
            while self._running and (back := self._next(STOP_WAIT)):
                silent = 0
                yield from back
            silent += bool(self._running)
            if silent in (STOPS_BEFORE_WARNING, STOPS_BEFORE_END):
                message = (
                    f"{len(self._running)} groups were stopped and have not come back for {silent * STOP_WAIT / 60:.0f} "
                    "minutes: an agent or a reward that blocks its engine's event loop"
                )
                if silent == STOPS_BEFORE_END:
                    raise RuntimeError(f"{message}; repair it and start again with --ckpt.load_enable")
                logger.warning(message)

    def pause(self) -> None:
        """Generate nothing while the weights change; with partial rollouts the trainer itself sees to that."""
        self._is_paused = bool(self._running) and not self._args.train.partial_rollout_enable
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "pause_generation")

    def sleep(self) -> None:
        """Let the engines free their memory for the training, if the run has them do that."""
        if self._args.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "sleep")

    def _call(self, function, *args, **kwargs) -> list:
        """Run `function` inside every engine's actor."""
        return [engine.__ray_call__.remote(function, *args, **kwargs) for engine in self._engines]

    def _send(self, engine: int) -> None:
        """Send groups that are held back to this engine, -1 for any, as far as it has room for them."""
        held = self._held[engine]
        generator, engines = (self._all, len(self._engines)) if engine < 0 else (self._each[engine], 1)
        count = min(MOST_CALLS * engines - self._calls[engine], len(held))
        if count <= 0:
            return
        self._calls[engine] += count
        sent = [held.popleft() for _ in range(count)]
        for rollouts, alike in groupby(sent, key=attrgetter("rollouts")):
            groups = list(alike)
            refs = generator._dispatch_prompts_to_vllm(
                [group.prompt.text for group in groups],
                [group.prompt.label for group in groups],
                images=[group.prompt.images for group in groups],
                n_samples_per_prompt=rollouts,
                **self._generate_kwargs,
            )
            for group, ref in zip(groups, refs):
                self._running[group.number] = engine
                self.rollouts.send(group.number, rollouts)
                ref.future().add_done_callback(partial(self._note_return, group.number))

    def _note_return(self, number: int, future: Future) -> None:
        """Called in a thread of Ray's."""
        self._back.put((number, future))

    def _next(self, timeout: float) -> list[tuple[int, list[dict]]]:
        """The group that comes back next, within `timeout` seconds."""
        try:
            number, future = self._back.get(timeout=timeout)
        except Empty:
            return []
        engine = self._running.pop(number)
        self._calls[engine] -= 1
        responses = _naming_death(future.result)
        self.rollouts.take_back(number, [response[ROLLOUT] for response in responses])
        if self._held[engine]:
            self._send(engine)
        return [(number, responses)]

    def _are_decoding(self) -> bool:
        """Whether an engine has a request; one whose event loop is blocked does not answer, and decodes nothing."""
        counts = [engine.get_num_unfinished_requests.remote() for engine in self._engines]
        with suppress(ray.exceptions.GetTimeoutError):
            return any(self._get(counts, timeout=STOP_WAIT))
        return False

    @staticmethod
    def _get(refs: list, timeout: float | None = None) -> list:
        return _naming_death(partial(ray.get, refs, timeout=timeout))


def _naming_death(call: Callable[[], T]) -> T:
    """What `call` returns; if an engine has died, one line says so, and how to go on."""
    try:
        return call()
    except ray.exceptions.RayActorError as error:
        reason = next(iter(str(error).splitlines()), "")
        raise RuntimeError(
            f"a vLLM engine has died: {reason:.300}; its own log says why, start again with --ckpt.load_enable"
        ) from error

"""The vLLM engines in their Ray actors: rollouts are sent to them, waited for, put together to groups and stopped."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, NamedTuple

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger

from openrlhf_sagc.actors.engine_core import end_with_the_core
from openrlhf_sagc.actors.rollouts import keep_first, stop_left_over, stop_rollouts, watch_rollouts
from openrlhf_sagc.decisions.records import ROLLOUT, Group, Labelled, Rollout
from openrlhf_sagc.driver.group_parts import GroupParts
from openrlhf_sagc.driver.step_seconds import RunningRollouts

logger = init_logger(__name__)

WAIT = 10.0  # seconds to wait for a group before looking around
STOP_WAIT = 1.0  # seconds to wait for stopped rollouts before stopping again
STOPS_BEFORE_WARNING = 60  # stops in a row that no group came back after
STOPS_BEFORE_END = 600  # of them before the run ends
LEFT_OVER_WAIT = 60.0  # seconds for the end of requests whose rollouts are over
MOST_CALLS = 900  # at a time for each engine: of the 1,000 that Ray allows an actor, the rest is for stops
NOT_STARTED: dict[str, Any] = {ROLLOUT: Rollout(0, 0.0, 0.0, finished=False, stopped=True, failure=None)}


class Call(NamedTuple):
    """Rollouts of a group that go to an engine together: all of them, to -1 where OpenRLHF chooses, or a single one."""

    group: Group
    place: int  # of the first of them in the group
    rollouts: int
    engine: int


class HeldCalls:
    """Calls that wait for room in an engine, in the order of their dispatch; those of a group can be dropped at once."""

    def __init__(self) -> None:
        self._calls: dict[int, deque[Call]] = {}  # by group number; a group's calls come together
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, call: Call) -> None:
        """The call waits behind all others."""
        self._calls.setdefault(call.group.number, deque()).append(call)
        self._count += 1

    def take(self) -> Call:
        """The call that waits longest, which waits no more."""
        number, calls = next(iter(self._calls.items()))
        self._count -= 1
        call = calls.popleft()
        if not calls:
            del self._calls[number]
        return call

    def drop(self, number: int) -> list[Call]:
        """The calls of this group, none of which waits any more."""
        calls = list(self._calls.pop(number, ()))
        self._count -= len(calls)
        return calls


class Engines:
    """All engines of the run.

    A step is `wake`, `resume`, then `dispatch`, `returned` and `stop` in any order, then `pause` and `sleep`.
    `silent_waits` counts the waits in a row that no group came back in, and `idle_waits` those of them after which no
    engine had a request to decode. `rollouts` knows when rollouts ran since `resume`.

    Args:
        strategy, tokenizer, vllm_engines: as of OpenRLHF's samples generator.
        note_back: called with a group's number and the places of rollouts that are back, while others may run on.
    """

    def __init__(
        self, strategy, tokenizer, vllm_engines: list, note_back: Callable[[int, Iterable[int]], None]
    ) -> None:
        self.silent_waits = self.idle_waits = 0
        self.rollouts = RunningRollouts()
        self._args = strategy.args
        self._engines = vllm_engines
        self._note_back = note_back
        # The tokenizer goes to each engine once, below: with every call it would cost both ends tenths of a second.
        self._all = SamplesGenerator(strategy, None, None, None, vllm_engines)
        self._each = [SamplesGenerator(strategy, None, None, None, [_Chosen(engine)]) for engine in vllm_engines]
        self._running: dict[int, GroupParts] = {}  # by group number
        self._stopped: set[int] = set()  # numbers of those whose rollouts still run though they have enough
        self._stopped_at = 0.0  # seconds on the clock when these were last told to stop
        self._calls: Counter[int] = Counter()  # that run, by engine
        self._held: dict[int, HeldCalls] = {}  # to send later, by engine
        self._back: SimpleQueue[tuple[Call, Future]] = SimpleQueue()
        self._generate_kwargs: dict[str, Any] = {}  # of the groups that are held
        self._keep_first: int | None = None  # as the engines know it
        self._is_paused = False
        reward = self._args.reward
        limits = {"timeout": reward.timeout, "retries": reward.retries}
        limits["agent_timeout"] = self._args.rollout.agent_timeout
        self._watching = self._call(watch_rollouts, tokenizer=tokenizer, **limits)
        self._call(end_with_the_core)

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
        self.rollouts.begin()
        self.silent_waits = self.idle_waits = 0
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "resume_generation")
        self._is_paused = False

    def dispatch(self, groups: list[Group], **generate_kwargs) -> None:
        """Send each rollout to its engine; OpenRLHF places whole groups that have no engines.

        Calls beyond MOST_CALLS an engine are held back until others return.
        """
        self._generate_kwargs = generate_kwargs
        engines = set()
        for group in groups:
            self._running[group.number] = GroupParts(group, self._keep_first)
            for call in _calls_of(group):
                self._held.setdefault(call.engine, HeldCalls()).add(call)
                engines.add(call.engine)
        for engine in sorted(engines):
            self._send(engine)

    def returned(self) -> list[tuple[int, list[dict]]]:
        """Wait for a group: its number and OpenRLHF's responses; nothing if no call came back for WAIT seconds.

        Raises:
            RayError: an engine has died.
        """
        while (back := self._next(WAIT)) == []:
            self.silent_waits = self.idle_waits = 0
        self.silent_waits = 0 if back else self.silent_waits + 1
        self.idle_waits = 0 if back or self._are_decoding() else self.idle_waits + 1
        return back or []

    def stop(self) -> Iterator[tuple[int, list[dict]]]:
        """Stop all that runs: the numbers and responses of the groups, some of which may have finished meanwhile.

        Raises:
            RayError: an engine has died.
            RuntimeError: groups have not come back after STOPS_BEFORE_END stops.
        """
        for held in self._held.values():
            while held:
                call = held.take()
                yield from self._put(call, [NOT_STARTED] * call.rollouts)
        silent = 0
        while self._running:  # again, since a call may reach its engine after the stop
            with suppress(ray.exceptions.GetTimeoutError):
                ray.get(self._call(stop_rollouts), timeout=STOP_WAIT)
            while self._running and (back := self._next(STOP_WAIT)) is not None:
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
        """Generate nothing while the weights change; with partial rollouts the trainer itself sees to that.

        Rollouts that go on in the next step are paused. Requests that agents have left behind end.

        Raises:
            RuntimeError: an engine has died, or such requests do not end.
        """
        self._is_paused = bool(self._running) and not self._args.train.partial_rollout_enable
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "pause_generation")
        if self._running or not self._args.train.agent_func_path:
            return
        deadline = time.perf_counter() + LEFT_OVER_WAIT
        while left := sum(ray.get(self._call(stop_left_over))):
            if time.perf_counter() > deadline:
                raise RuntimeError(
                    f"{left} requests that --train.agent_func_path {self._args.train.agent_func_path} has left behind do not "
                    f"end, and would decode under new weights: await what the agent asks for, or stop asking when it returns"
                )
            time.sleep(0.01)

    def sleep(self) -> None:
        """Let the engines free their memory for the training, if the run has them do that."""
        if self._args.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "sleep")

    def _call(self, function, *args, **kwargs) -> list:
        """Run `function` inside every engine's actor."""
        return [engine.__ray_call__.remote(function, *args, **kwargs) for engine in self._engines]

    def _send(self, engine: int) -> None:
        """Send calls that are held back to this engine, -1 for any, as far as it has room for them."""
        held = self._held[engine]
        generator, engines = (self._all, len(self._engines)) if engine < 0 else (self._each[engine], 1)
        count = min(MOST_CALLS * engines - self._calls[engine], len(held))
        if count <= 0:
            return
        self._calls[engine] += count
        sent = [held.take() for _ in range(count)]
        for rollouts, alike in groupby(sent, key=attrgetter("rollouts")):
            calls = list(alike)
            refs = generator._dispatch_prompts_to_vllm(
                [call.group.prompt.text for call in calls],
                [Labelled(call.group.number, call.group.prompt.label) for call in calls],
                images=[call.group.prompt.images for call in calls],
                n_samples_per_prompt=rollouts,
                **self._generate_kwargs,
            )
            for call, ref in zip(calls, refs):
                number = call.group.number
                self._running[number].sent(self.rollouts.send((number, call.place), rollouts))
                ref.future().add_done_callback(partial(self._note_return, call))

    def _note_return(self, call: Call, future: Future) -> None:
        """Called in a thread of Ray's."""
        self._back.put((call, future))

    def _next(self, timeout: float) -> list[tuple[int, list[dict]]] | None:
        """The group that the next call makes whole, if it does; None if no call comes back within `timeout` seconds."""
        came = self._wait(timeout)
        if came is None:
            return None
        call, future = came
        self._calls[call.engine] -= 1
        responses = future.result()
        sent = self.rollouts.take_back((call.group.number, call.place), [response[ROLLOUT] for response in responses])
        whole = self._put(call, responses, sent)
        if self._held[call.engine]:
            self._send(call.engine)
        return whole

    def _wait(self, timeout: float) -> tuple[Call, Future] | None:
        """The call that comes back next, within `timeout` seconds."""
        waits = round(timeout / STOP_WAIT) if self._stopped else 1
        for _ in range(waits):
            if self._stopped and time.perf_counter() >= self._stopped_at + STOP_WAIT:
                self._stop_groups(self._stopped)  # again, since a call may reach its engine after the stop
                self._stopped_at = time.perf_counter()
            try:
                return self._back.get(timeout=timeout / waits)
            except Empty:
                self._stopped_at = 0.0
        return None

    def _put(self, call: Call, responses: list[dict], sent: float | None = None) -> list[tuple[int, list[dict]]]:
        """These responses are back; their group if that makes it whole. What it needs no more is stopped."""
        number = call.group.number
        if call.rollouts == call.group.rollouts:
            del self._running[number]
            return [(number, responses)]
        parts = self._running[number]
        parts.put(call.place, responses, sent)
        self._note_back(number, (call.place,))
        if parts.has_enough and number not in self._stopped and not parts.is_whole:
            if not self._stopped:
                self._stopped_at = time.perf_counter()
            self._stopped.add(number)
            self._stop_groups([number])
            self._drop_held(parts)
        if not parts.is_whole:
            return []
        del self._running[number]
        self._stopped.discard(number)
        return [(number, parts.responses)]

    def _stop_groups(self, numbers: Iterable[int]) -> None:
        """Stop the rollouts of these groups where they run; what has begun comes back, a call on its way may not hear."""
        groups_of: dict[int, list[int]] = {}
        for number in numbers:
            parts = self._running[number]
            for engine in {parts.group.engines[place] for place in parts.left}:
                groups_of.setdefault(engine, []).append(number)
        for engine, groups in groups_of.items():
            self._engines[engine].__ray_call__.remote(stop_rollouts, groups)

    def _drop_held(self, parts: GroupParts) -> None:
        """Rollouts of this group that were not sent will not be."""
        for engine in {parts.group.engines[place] for place in parts.left}:
            for call in self._held[engine].drop(parts.group.number):
                parts.put(call.place, [NOT_STARTED])
                self._note_back(call.group.number, (call.place,))

    def _are_decoding(self) -> bool:
        """Whether an engine has a request; one whose event loop is blocked does not answer, and decodes nothing."""
        counts = [engine.get_num_unfinished_requests.remote() for engine in self._engines]
        with suppress(ray.exceptions.GetTimeoutError):
            return any(ray.get(counts, timeout=STOP_WAIT))
        return False


class _Chosen:
    """An engine that says that it has no requests: OpenRLHF would wait for their number, though it has no choice."""

    def __init__(self, engine) -> None:
        self._engine = engine
        self.get_num_unfinished_requests = SimpleNamespace(remote=partial(ray.put, 0))

    def __getattr__(self, name: str):
        return getattr(self._engine, name)


def _calls_of(group: Group) -> list[Call]:
    """A call for each rollout, or one for all of them where OpenRLHF places the group."""
    if not group.engines:
        return [Call(group, 0, group.rollouts, -1)]
    return [Call(group, place, 1, engine) for place, engine in enumerate(group.engines)]

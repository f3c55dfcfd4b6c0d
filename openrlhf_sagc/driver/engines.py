"""The vLLM engines in their Ray actors: rollouts are sent to them, waited for, put together to groups and stopped."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger

from openrlhf_sagc.actors.engine_core import end_with_the_core
from openrlhf_sagc.actors.rollouts import keep_first, stop_left_over, stop_rollouts, watch_rollouts
from openrlhf_sagc.decisions.records import Collect, Dispatch, Ended, Group, Share
from openrlhf_sagc.driver.group_parts import GroupParts
from openrlhf_sagc.driver.step_seconds import idle_tail

logger = init_logger(__name__)

WAIT = 10.0  # seconds to wait for a group before looking around
STOP_WAIT = 1.0  # seconds to wait for stopped rollouts before stopping again
STOPS_BEFORE_WARNING = 60  # stops in a row that no group came back after
STOPS_BEFORE_END = 600  # of them before the run ends
LEFT_OVER_WAIT = 60.0  # seconds for the end of requests whose rollouts are over


class Engines:
    """All engines of the run.

    A step is `wake`, `resume`, then `dispatch`, `returned` and `stop` in any order, then `pause` and `sleep`.
    `silent_waits` counts the waits in a row that no group came back in, and `idle_waits` those of them after which no
    engine had a request to decode.

    An engine gets one call for all that is dispatched to it together, and while rollouts run there one more, which waits
    for what has ended since the last one. So the driver's work follows the rollouts, and it never asks who has room.

    Args:
        strategy, tokenizer, vllm_engines: as of OpenRLHF's samples generator.
        note_back: called with a group's number and the places of rollouts that are back, while others may run on.
    """

    def __init__(
        self, strategy, tokenizer, vllm_engines: list, note_back: Callable[[int, Iterable[int]], None]
    ) -> None:
        self.silent_waits = self.idle_waits = 0
        self._strategy = strategy
        self._args = strategy.args
        self._engines = vllm_engines
        self._note_back = note_back
        self._running: dict[int, GroupParts] = {}  # by group number
        self._stopped: set[int] = set()  # numbers of those whose rollouts still run though they have enough
        self._stopped_at = 0.0  # seconds on the clock when these were last told to stop
        self._rollouts: Counter[int] = Counter()  # that run, by engine
        self._asked: set[int] = set()  # engines that will say what has ended
        self._back: SimpleQueue[tuple[int, Future]] = SimpleQueue()  # answers of engines
        self._began = 0.0  # seconds on the clock at `resume`
        self._spans: list[tuple[float, float]] = []  # when rollouts ran whose groups came back since then
        self._generate_kwargs: dict[str, Any] | None = None  # of the last dispatch, from which `_settings` follow
        self._settings: dict[str, Any] = {}
        self._keep_first: int | None = None  # as the engines know it
        self._is_paused = False
        reward = self._args.reward
        limits = {"timeout": reward.timeout, "retries": reward.retries}
        limits["agent_timeout"] = self._args.rollout.agent_timeout
        self._watching = self._call(watch_rollouts, tokenizer=ray.put(tokenizer), **limits)
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
        self._began, self._spans = time.perf_counter(), []
        self.silent_waits = self.idle_waits = 0
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "resume_generation")
        self._is_paused = False

    def dispatch(self, groups: list[Group], **generate_kwargs) -> None:
        """Send the rollouts of these groups to their engines: one call to each."""
        if generate_kwargs != self._generate_kwargs:
            self._generate_kwargs, self._settings = generate_kwargs, _settings_of(self._strategy, generate_kwargs)
        now = time.perf_counter()
        shares: dict[int, list[Share]] = {}
        for group in groups:
            self._running[group.number] = GroupParts(group, self._keep_first, now)
            places: dict[int, list[int]] = {}
            for place, engine in enumerate(group.engines):
                places.setdefault(engine, []).append(place)
            for engine, on_engine in places.items():
                shares.setdefault(engine, []).append(Share(group.number, group.prompt, tuple(on_engine)))
                self._rollouts[engine] += len(on_engine)
        for engine, of_engine in shares.items():
            ref = self._engines[engine].generate_responses.remote(Dispatch(of_engine), **self._settings)
            ref.future().add_done_callback(partial(self._note_dispatch, engine))
            self._ask(engine)

    def idle_tail(self) -> float:
        """Seconds since the peak of this step in which fewer than half as many rollouts ran as at the peak."""
        now = time.perf_counter()
        running = [span for parts in self._running.values() for span in parts.spans(now)]
        return idle_tail([*self._spans, *running], self._began, now)

    def returned(self) -> list[tuple[int, list[dict]]]:
        """Wait for groups: their numbers and OpenRLHF's responses; nothing if no rollout came back for WAIT seconds.

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

    def _ask(self, engine: int) -> None:
        """Have the engine say what has ended, unless it is asked already or nothing runs there."""
        if self._rollouts[engine] and engine not in self._asked:
            self._asked.add(engine)
            ref = self._engines[engine].generate_responses.remote(Collect(), None, None, 0, None)
            ref.future().add_done_callback(partial(self._note_answer, engine))

    def _note_answer(self, engine: int, future: Future) -> None:
        """Called in a thread of Ray's."""
        self._back.put((engine, future))

    def _note_dispatch(self, engine: int, future: Future) -> None:
        """Called in a thread of Ray's; a call that could not begin its rollouts is no answer that others wait for."""
        if future.exception():
            self._back.put((engine, future))

    def _next(self, timeout: float) -> list[tuple[int, list[dict]]] | None:
        """The groups that an engine's next answer makes whole; None if none answers within `timeout` seconds."""
        came = self._wait(timeout)
        if came is None:
            return None
        engine, future = came
        (ended,) = future.result()
        self._asked.remove(engine)
        self._rollouts[engine] -= len(ended)
        self._ask(engine)
        return self._put(ended)

    def _wait(self, timeout: float) -> tuple[int, Future] | None:
        """The answer that comes next, within `timeout` seconds."""
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

    def _put(self, ended: list[Ended]) -> list[tuple[int, list[dict]]]:
        """These rollouts are back; the groups that they make whole. What the others need no more is stopped."""
        whole, have_enough = [], set[int]()
        for number, place, response in ended:
            parts = self._running[number]
            parts.put(place, response)
            self._note_back(number, (place,))
            if parts.is_whole:
                del self._running[number]
                self._stopped.discard(number)
                self._spans += parts.spans()
                whole.append((number, parts.responses))
            elif parts.has_enough and number not in self._stopped:
                have_enough.add(number)
        if late := have_enough & self._running.keys():
            self._stopped_at = self._stopped_at if self._stopped else time.perf_counter()
            self._stopped |= late
            self._stop_groups(late)
        return whole

    def _stop_groups(self, numbers: Iterable[int]) -> None:
        """Stop the rollouts of these groups where they run; what has begun comes back, a call on its way may not hear."""
        groups_on: dict[int, list[int]] = {}
        for number in numbers:
            for engine in self._running[number].left_on:
                groups_on.setdefault(engine, []).append(number)
        for engine, groups in groups_on.items():
            self._engines[engine].__ray_call__.remote(stop_rollouts, groups)

    def _are_decoding(self) -> bool:
        """Whether an engine has a request; one whose event loop is blocked does not answer, and decodes nothing."""
        counts = [engine.get_num_unfinished_requests.remote() for engine in self._engines]
        with suppress(ray.exceptions.GetTimeoutError):
            return any(ray.get(counts, timeout=STOP_WAIT))
        return False


def _settings_of(strategy, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate_responses` besides prompt and images, as OpenRLHF makes them for every prompt.

    The tokenizer is None: each engine has it already. With every call it would cost both ends tenths of a second.
    """
    sent: dict[str, Any] = {}
    nobody = SimpleNamespace(
        get_num_unfinished_requests=SimpleNamespace(remote=partial(ray.put, 0)),
        generate_responses=SimpleNamespace(remote=sent.update),
    )
    SamplesGenerator(strategy, None, None, None, [nobody])._dispatch_prompts_to_vllm([""], [""], **generate_kwargs)
    return {name: value for name, value in sent.items() if name not in ("prompt", "num_samples")}

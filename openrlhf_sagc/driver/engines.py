"""The vLLM engines in their Ray actors: rollouts are sent to them, waited for and stopped."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
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

from openrlhf_sagc.config.settings import NotGiven, Settings
from openrlhf_sagc.decisions.group_parts import GroupParts
from openrlhf_sagc.decisions.idle_tail import idle_seconds, wait_share
from openrlhf_sagc.decisions.records import (
    ROLLOUT,
    AskBegun,
    Begun,
    Collect,
    CountDrafts,
    Dispatch,
    Ended,
    Group,
    Share,
)
from openrlhf_sagc.driver.earlier_responses import EarlierResponses
from openrlhf_sagc.engine.engine_core import end_with_the_core
from openrlhf_sagc.engine.rollouts import stop_left_over, stop_rollouts, watch_rollouts
from openrlhf_sagc.run.wishes import GivenUp, wishes

logger = init_logger(__name__)

WAIT = 10.0  # seconds to wait for a rollout before looking around
STOP_WAIT = 1.0  # seconds to wait for stopped rollouts before stopping again
STOPS_BEFORE_WARNING = 60  # stops in a row that no rollout ended after
STOPS_BEFORE_END = 600  # of them before the run ends
LEFT_OVER_WAIT = 60.0  # seconds for the end of requests whose rollouts are over

Left = Mapping[
    int, Mapping[int, Begun | None]
]  # what groups, by number, still have to roll out: places, and what they go on from


class Engines:
    """All engines of the run, as `loop.roll_out` wants them.

    A step is `wake`, `resume`, then `dispatch`, `ended` and `stop` in any order, then `pause` and `sleep`.
    `earlier` keeps responses for the engines' drafts; None where they draft nothing.
    `silent_waits` counts the waits in a row in which no rollout ended, and `idle_waits` those of them after which no engine
    had a request to decode.

    An engine gets one call for all that is dispatched to it together, and while rollouts run there one more, which waits
    for what has ended since the last one. So the driver's work follows the rollouts, and training never asks who has room.

    Args:
        strategy, vllm_engines: as of OpenRLHF's samples generator.
        settings: of the run.
        tokenizer_sent: references that are there once every engine has its tokenizer; calls may overtake each other.
    """

    def __init__(self, strategy, settings: Settings, vllm_engines: list, tokenizer_sent: Sequence = ()) -> None:
        self.silent_waits = self.idle_waits = 0
        self.tells = False  # as of a `Dispatch`, for what is dispatched from now on
        self.earlier = EarlierResponses() if settings.rollout.drafts != "off" else None
        self._strategy = strategy
        self._settings = settings
        self._engines = vllm_engines
        self._rollouts: Counter[int] = Counter()  # that run, by engine
        self._running = 0  # all of them
        self._asked: set[int] = set()  # engines that will say what has ended
        self._back: SimpleQueue[tuple[int, Future] | None] = (
            SimpleQueue()
        )  # answers of engines; None: to give the step up
        self._held: list[list[Ended]] = []  # that `ended` gives before all others
        self._late: dict[int, Counter[int]] = {}  # groups that are to stop: rollouts that still run, by engine
        self._told = 0.0  # seconds on the clock at which all of these were last told so
        self._sent: dict[int, float] = {}  # seconds on the clock at which groups were dispatched, by number
        self._began = 0.0  # seconds on the clock at `resume`
        self._spans: list[tuple[float, float]] = []  # when the rollouts ran that ended since then
        self._rewarded: list[tuple[float, float]] = []  # and when they waited for their rewards
        # Since `wait_share` was asked: engine, begin and end of each rollout.
        self._ran: list[tuple[int, float, float]] = []
        self._asked_at = time.perf_counter()
        self._generate_kwargs: dict[str, Any] | None = None  # from which `_sampling` follow
        self._sampling: dict[str, Any] = {}
        self._is_paused = False
        reward = self._settings.reward
        limits = {"timeout": reward.timeout, "retries": reward.retries}
        limits["agent_timeout"] = self._settings.rollout.agent_timeout
        # Where no flag has asked for them, an agent without them trains as it would in OpenRLHF.
        limits["may_lack_log_probs"] = isinstance(settings.algo.advantage.is_correction_level, NotGiven)
        self._ready = [*tokenizer_sent, *self._call(watch_rollouts, **limits)]
        self._call(end_with_the_core)
        wishes().at_end(partial(self._back.put, None))

    def wake(self) -> None:
        """Bring engines back that sleep between steps."""
        if self._settings.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "wake_up")

    def resume(self, generate_kwargs: dict[str, Any] | None = None) -> None:
        """Go on generating after `pause`; `generate_kwargs` are OpenRLHF's, for what is dispatched from now on.

        From here on every wait for rollouts ends where the command wishes the end of the run.

        Raises:
            GivenUp: it does.
        """
        wishes().look()
        ray.get(self._ready)
        if generate_kwargs is not None and generate_kwargs != self._generate_kwargs:
            self._generate_kwargs, self._sampling = generate_kwargs, _sampling_of(self._strategy, generate_kwargs)
        self._began, self._spans, self._rewarded = time.perf_counter(), [], []
        self.silent_waits = self.idle_waits = 0
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "resume_generation")
        self._is_paused = False

    def dispatch(self, groups: Sequence[Group], left: Left | None = None) -> None:
        """Send the rollouts of these groups to their engines, or what is `left` of them: one call to each."""
        now = time.perf_counter()
        shares: dict[int, list[Share]] = {}
        for group in groups:
            self._sent[group.number] = now
            places: dict[int, list[int]] = {}
            to_send = range(group.rollouts) if left is None else left[group.number]
            for place in to_send:
                places.setdefault(group.engines[place], []).append(place)
            begun = {place: found for place, found in left[group.number].items() if found} if left else {}
            for engine, on_engine in places.items():
                shares.setdefault(engine, []).append(Share(group.number, group.prompt, tuple(on_engine), begun))
                self._rollouts[engine] += len(on_engine)
                self._running += len(on_engine)
        for engine, of_engine in shares.items():
            earlier = self.earlier.of(share.prompt.identity for share in of_engine) if self.earlier else ()
            begin = Dispatch(of_engine, self.tells, earlier)
            ref = self._engines[engine].generate_responses.remote(begin, **self._sampling)
            ref.future().add_done_callback(partial(self._note_dispatch, engine))
            self._ask(engine)

    def go_on(self, groups: Sequence[Group], left: Left, ended: list[Ended]) -> None:
        """Dispatch what is left of these groups, of which others had ended before a checkpoint was saved."""
        self.dispatch(groups, left)
        self._held += [ended] if ended else []

    def ended(self) -> list[Ended]:
        """Wait for an engine to say which rollouts have ended there; none if none says so for WAIT seconds.

        Raises:
            RayError: an engine has died.
        """
        if self._held:
            return self._held.pop(0)
        waits = round(WAIT / STOP_WAIT) if self._late else 1
        for _ in range(waits):
            if self._late and time.perf_counter() >= self._told + STOP_WAIT:
                self._tell(self._late)  # again, since a call on its way may not have heard
                self._told = time.perf_counter()
            if ended := self._next(WAIT / waits):
                self.silent_waits = self.idle_waits = 0
                return ended
        self.silent_waits += 1
        self.idle_waits = 0 if self._are_decoding() else self.idle_waits + 1
        return []

    def stop(self) -> Iterator[list[Ended]]:
        """Stop all that runs: what has ended, some of which may have finished meanwhile, until nothing runs.

        Raises:
            RayError: an engine has died.
            RuntimeError: rollouts have not ended after STOPS_BEFORE_END stops.
        """
        silent, held, self._held = 0, self._held, []
        yield from held
        while self._running:  # again, since a call may reach its engine after the stop
            with suppress(ray.exceptions.GetTimeoutError):
                ray.get(self._call(stop_rollouts), timeout=STOP_WAIT)
            while self._running and (ended := self._next(STOP_WAIT)):
                silent = 0
                yield ended
            silent += bool(self._running)
            if silent in (STOPS_BEFORE_WARNING, STOPS_BEFORE_END):
                message = (
                    f"{self._running} rollouts were stopped and have not come back for "
                    f"{silent * STOP_WAIT / 60:.0f} minutes: an agent or a reward that blocks its engine's event loop"
                )
                if silent == STOPS_BEFORE_END:
                    raise RuntimeError(f"{message}; repair it and start again with --ckpt.load_enable")
                logger.warning(message)

    def result(self, ref: ray.ObjectRef) -> Any:
        """What a call of an engine returns."""
        while True:
            wishes().look()
            with suppress(ray.exceptions.GetTimeoutError):
                return ray.get(ref, timeout=STOP_WAIT)

    def idle_seconds(self, running: Collection[GroupParts]) -> tuple[float, float, float]:
        """Seconds of this step's idle tail, those in which it waited for rewards, see `idle_seconds`, and all of them.

        Args:
            running: the groups that run on; the times of others are let go.
        """
        now, sent = time.perf_counter(), {parts.group.number: self._sent[parts.group.number] for parts in running}
        self._sent = sent
        still = [(sent[parts.group.number], now) for parts in running for _ in parts.left_on]
        return *idle_seconds([*self._spans, *still], self._rewarded, self._began, now), now - self._began

    def wait_share(self, running: Collection[GroupParts]) -> float:
        """Share of the engines' time since it was last asked in which nothing ran on them; these groups run on."""
        now, began = time.perf_counter(), self._asked_at
        still = [(engine, self._sent[parts.group.number], now) for parts in running for engine in parts.left_on]
        ran, self._ran, self._asked_at = [*self._ran, *still], [], now
        return wait_share(ran, began, now, len(self._engines))

    def begun(self, running: Collection[GroupParts]) -> tuple[dict[tuple[int, int], Begun | None], list[Ended]]:
        """What the rollouts of these groups have so far, by group and place, and those that have ended since `ended` said so."""
        refs = [engine.generate_responses.remote(AskBegun(), None, None, 0) for engine in self._engines]
        begun = {key: found for ref in refs for of_engine in self.result(ref) for key, found in of_engine.items()}
        unknown = {
            (parts.group.number, place)
            for parts in running
            for place, back in enumerate(parts.responses)
            if back is None
        }
        unknown -= begun.keys() | {(number, place) for held in self._held for number, place, _ in held}
        while unknown and (ended := self._next(STOP_WAIT)):
            self._held.append(ended)
            unknown -= {(number, place) for number, place, response in ended if response is not None}
        return begun, [back for held in self._held for back in held if back.response is not None]

    def draft_counts(self) -> Counter[str]:
        """Of all engines together, see `Drafts.counts`; of an engine's workers all have memory, and the first one's drafts count."""
        refs = [engine.generate_responses.remote(CountDrafts(), None, None, 0) for engine in self._engines]
        workers = [workers for ref in refs for workers in self.result(ref)]
        memory = [{"mib": worker["mib"]} for others in workers for worker in others[1:]]
        return sum(map(Counter, [*(first for first, *_ in workers), *memory]), Counter())

    def stop_surplus(self, groups: dict[int, list[int]]) -> None:
        """Stop what still runs of these groups, by number: the engine of each rollout; until it has ended."""
        late = {number: Counter(engines) for number, engines in groups.items()}
        if late and not self._late:
            self._told = time.perf_counter()
        self._late |= late
        self._tell(late)

    def pause(self) -> None:
        """Generate nothing while the weights change; with partial rollouts the trainer itself sees to that.

        Rollouts that go on in the next step are paused. Requests that agents have left behind end.

        Raises:
            RuntimeError: an engine has died, or such requests do not end.
        """
        self._is_paused = bool(self._running) and not self._settings.train.partial_rollout_enable
        if self._is_paused:
            batch_vllm_engine_call(self._engines, "pause_generation")
        if self._running or not self._settings.train.agent_func_path:
            return
        deadline = time.perf_counter() + LEFT_OVER_WAIT
        while left := sum(ray.get(self._call(stop_left_over))):
            if time.perf_counter() > deadline:
                raise RuntimeError(
                    f"{left} requests that --train.agent_func_path {self._settings.train.agent_func_path} has left behind do not "
                    f"end, and would decode under new weights: await what the agent asks for, or stop asking when it returns"
                )
            time.sleep(0.01)

    def sleep(self) -> None:
        """Let the engines free their memory for the training, if the run has them do that."""
        if self._settings.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "sleep")

    def _call(self, function, *args, **kwargs) -> list:
        """Run `function` inside every engine's actor."""
        return [engine.__ray_call__.remote(function, *args, **kwargs) for engine in self._engines]

    def _ask(self, engine: int) -> None:
        """Have the engine say what has ended, unless it is asked already or nothing runs there."""
        if self._rollouts[engine] and engine not in self._asked:
            self._asked.add(engine)
            ref = self._engines[engine].generate_responses.remote(Collect(), None, None, 0)
            ref.future().add_done_callback(partial(self._note_answer, engine))

    def _note_answer(self, engine: int, future: Future) -> None:
        """Called in a thread of Ray's."""
        self._back.put((engine, future))

    def _note_dispatch(self, engine: int, future: Future) -> None:
        """Called in a thread of Ray's; a call that could not begin its rollouts is no answer that others wait for."""
        if future.exception():
            self._back.put((engine, future))

    def _next(self, timeout: float) -> list[Ended]:
        """What the next answer of an engine says has ended; nothing if none answers within `timeout` seconds."""
        try:
            answer = self._back.get(timeout=timeout)
        except Empty:
            return []
        if answer is None:
            raise GivenUp
        engine, future = answer
        (ended,) = future.result()
        done = [(number, response) for number, _, response in ended if response is not None]
        self._asked.remove(engine)
        self._rollouts[engine] -= len(done)
        self._running -= len(done)
        self._ask(engine)
        for number, response in done:
            if left := self._late.get(number):
                left[engine] -= 1
                if not left.total():
                    del self._late[number]
            generated = self._sent[number] + response[ROLLOUT].generated
            self._spans.append((generated - response[ROLLOUT].running_seconds, generated))
            self._ran.append((engine, *self._spans[-1]))
            self._rewarded.append((generated, generated + response[ROLLOUT].reward_seconds))
        return ended

    def _tell(self, late: dict[int, Counter[int]]) -> None:
        """Have engines stop their rollouts of these groups: one call to each; a call on its way may not hear of it."""
        groups_on: dict[int, list[int]] = {}
        for number, left in late.items():
            for engine in +left:
                groups_on.setdefault(engine, []).append(number)
        for engine, numbers in groups_on.items():
            self._engines[engine].__ray_call__.remote(stop_rollouts, numbers)

    def _are_decoding(self) -> bool:
        """Whether an engine has a request; one whose event loop is blocked does not answer, and decodes nothing."""
        counts = [engine.get_num_unfinished_requests.remote() for engine in self._engines]
        with suppress(ray.exceptions.GetTimeoutError):
            return any(ray.get(counts, timeout=STOP_WAIT))
        return False


def _sampling_of(strategy, generate_kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate_responses` besides prompt and images, as OpenRLHF makes them for every prompt."""
    sent: dict[str, Any] = {}
    nobody = SimpleNamespace(
        get_num_unfinished_requests=SimpleNamespace(remote=partial(ray.put, 0)),
        generate_responses=SimpleNamespace(remote=sent.update),
    )
    generator = SamplesGenerator(strategy, None, None, None, [])
    generator.vllm_engines = [nobody]
    generator._dispatch_prompts_to_vllm([""], [""], **generate_kwargs)
    return {name: value for name, value in sent.items() if name not in ("prompt", "num_samples")}

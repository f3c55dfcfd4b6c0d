"""In an engine's actor: a rollout that runs there, and the engine as its agent sees it."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np

from openrlhf_sagc.decisions.records import Begun

Tell = Callable[[], None]


@dataclass(eq=False)
class RunningGroup:
    """The rollouts of one group that run in this engine; `tokenizer` is an agent's."""

    tokenizer: Any = None
    running: set["RunningRollout"] = field(default_factory=set)


class EngineOfAgents:
    """The engine as agents see it: one object for all their rollouts, since an agent may keep that of its first call.

    Requests made in an agent's own task, or in one that it started, are those of its rollout. `requests` are the others,
    which an agent makes in a thread of its own, such as a server's. They run as they are while any rollout runs, and end
    in `RolloutExecutor.stop` and `stop_left_over`. Where no rollout runs nobody waits for them, and they are refused.

    Args:
        engine_actor: OpenRLHF's RolloutRayActor.
        running: the rollouts that run, as they come and go.
    """

    def __init__(self, engine_actor, running: set["RunningRollout"]):
        self._actor, self._running = engine_actor, running
        self.requests: set[str] = set()

    def __getattr__(self, name):
        return getattr(self._actor, name)

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None, request_id=None):
        """The actor's `generate`, with a request id of its own by which the request can be aborted."""
        request, vllm = request_id or uuid4().hex, self._actor.llm
        named = copy(self._actor)  # OpenRLHF's would have vLLM call the request by a name that nobody learns
        named.llm = SimpleNamespace(
            generate=lambda prompt, sampling_params, request_id: vllm.generate(
                prompt, sampling_params, request_id=request
            )
        )
        rollout = current_rollout.get(None)
        inner = partial(continued, named.generate, rollout.begun) if rollout and rollout.begun else named.generate
        call = partial(inner, prompt_token_ids, copy(sampling_params), multi_modal_data=multi_modal_data)
        if rollout and not rollout.task.done() and rollout.ended.get_loop() is asyncio.get_running_loop():
            return await rollout.generate(call, request)
        if not self._running:
            raise asyncio.CancelledError
        self.requests.add(request)
        try:
            return await call()
        finally:
            self.requests.remove(request)


class RunningRollout:
    """A rollout: it counts its tokens and seconds in vLLM's queue, and can be ended.

    Args:
        agent_timeout: seconds that may pass between two of its requests to the engine, or None.
        engine: as the agent sees it.
        tell: says to somebody that it has nothing but its reward to come, or None.
        begun: what it goes on from, or None; of an executor that asks the engine once.
    """

    def __init__(
        self,
        agent_timeout: float | None,
        engine: EngineOfAgents,
        tell: Tell | None = None,
        begun: Begun | None = None,
    ):
        self.begun = begun
        self._output: Any = None  # the engine's last one
        self.requests: set[str] = set()  # in vLLM or on the way there
        self.tokens = 0
        self.queue_seconds = 0.0
        self.failure: str | None = None
        self.refused = self.retried = 0  # requests for its reward
        self._reward_seconds, self._reward_since = 0.0, 0.0  # so far, and on the clock since when it waits, if it does
        self.stopped = False
        self.closed = False  # stopped or given up: no request is made any more, and what the agent returns is ignored
        self.task: asyncio.Task  # set right after this object is made
        self.ended = asyncio.get_running_loop().create_future()
        self._agent_timeout, self._engine, self._tell = agent_timeout, engine, tell
        self._deadline: asyncio.TimerHandle | None = None

    @contextmanager
    def outside_the_engine(self):
        """While this is entered, the rollout is given up once it has no request in the engine for too long."""
        self._set_deadline(True)
        try:
            yield
        finally:
            self._set_deadline(False)

    @contextmanager
    def waits_for_its_reward(self):
        """While this is entered, it has nothing to do but to wait."""
        self._reward_since = time.perf_counter()
        if self._tell and not self.closed:
            self._tell()
        try:
            yield
        finally:
            self._reward_seconds, self._reward_since = self.reward_seconds, 0.0

    @property
    def reward_seconds(self) -> float:
        """For which it has waited for its reward."""
        return self._reward_seconds + (time.perf_counter() - self._reward_since if self._reward_since else 0.0)

    async def generate(self, call, request: str):
        """What `call`, the actor's `generate`, returns for this rollout."""
        if self.closed:
            raise asyncio.CancelledError
        start = time.perf_counter()
        self.requests.add(request)
        self._set_deadline(False)
        try:
            output = await call()
        finally:
            self.requests.remove(request)
            self._set_deadline(not self.requests and not self.task.done())
        self._output = output.outputs[0]
        if self.task.done() and not self.closed:
            raise asyncio.CancelledError  # nobody has waited for it
        self.tokens += len(output.outputs[0].token_ids)
        stats = output.metrics
        if stats is not None:  # None if vLLM logs no statistics; all 0 if it was aborted before its first token
            wait = stats.scheduled_ts - stats.queued_ts if stats.scheduled_ts else time.perf_counter() - start
            self.queue_seconds += max(wait, 0.0)
        if self.stopped or output.outputs[0].finish_reason == "abort":
            self.stopped = self.closed = True
            if not self.requests:
                self.end()
            raise asyncio.CancelledError  # ends the task; if the agent catches it, `end` lets `execute` return all the same
        return output

    def so_far(self, requests: Any) -> Begun | None:
        """What it has generated, of an executor that asks the engine once; None if that is nothing.

        Args:
            requests: vLLM's output processor, which has the tokens of its requests.
        """
        if self.closed:
            return None
        if self._output:
            return _begun_of(self._output.token_ids, self._output.logprobs, self._output.finish_reason)
        for request in self.requests:
            for name in requests.external_req_ids.get(request, ()):
                state = requests.request_states[name]
                new = _begun_of(state.detokenizer.output_token_ids, state.logprobs_processor.logprobs, None)
                return _joined(self.begun, new) if self.begun else new
        return self.begun

    def stop(self) -> None:
        """Mark the rollout as stopped, and end it unless vLLM still owes it the tokens of a request."""
        if not self.task.done():
            self.stopped = self.closed = True
            if not self.requests:
                self.task.cancel()
                self.end()

    def end(self, _task=None) -> None:
        """Let `execute` return, whatever the task does."""
        if not self.ended.done():
            self.ended.set_result(None)

    def _set_deadline(self, on: bool) -> None:
        """Give the rollout up after the agent's time, counted from now; or no longer."""
        if self._deadline:
            self._deadline.cancel()
        self._deadline = None
        if on and self._agent_timeout is not None and not self.closed:
            self._deadline = asyncio.get_running_loop().call_later(self._agent_timeout, self._give_up)

    def _give_up(self) -> None:
        """The agent or its tool hangs: end the rollout as a failure, unless a request of no known rollout may be its own."""
        if self._engine.requests:
            self._set_deadline(True)
        elif not self.ended.done():
            self.closed = True
            self.failure = f"the agent made no request to the engine for {self._agent_timeout:g} s and did not return"
            self.task.cancel()
            self.end()


async def continued(generate: Callable, begun: Begun, prompt: list[int], params: Any, **media: Any) -> Any:
    """What `generate`, the actor's, returns for this prompt, whose response goes on from what it had."""
    tokens = begun.tokens.tolist()
    params.max_tokens, params.min_tokens = params.max_tokens - len(tokens), max(params.min_tokens - len(tokens), 0)
    if begun.finish_reason or params.max_tokens <= 0:
        ended = SimpleNamespace(token_ids=[], logprobs=[], text="", finish_reason=begun.finish_reason or "length")
        output = SimpleNamespace(outputs=[ended], metrics=None)
    else:
        output = await generate([*prompt, *tokens], params, **media)
    response = output.outputs[0]
    response.token_ids = [*tokens, *response.token_ids]
    if begun.log_probs is not None:
        before = [{token: SimpleNamespace(logprob=p)} for token, p in zip(tokens, begun.log_probs.tolist())]
        response.logprobs = [*before, *response.logprobs]
    return output


def _begun_of(tokens: Sequence[int], log_probs: Sequence[Any] | None, finish_reason: str | None) -> Begun | None:
    """Of a response's tokens, and of what vLLM says of each; None if there are none."""
    if not tokens:
        return None
    made = log_probs and np.array([by[token].logprob for token, by in zip(tokens, log_probs)], np.float32)
    return Begun(np.array(tokens, np.int32), made, finish_reason)


def _joined(before: Begun, new: Begun | None) -> Begun:
    if new is None:
        return before
    log_probs = None if new.log_probs is None else np.concatenate([before.log_probs, new.log_probs])
    return Begun(np.concatenate([before.tokens, new.tokens]), log_probs, new.finish_reason)


current_rollout: ContextVar[RunningRollout] = ContextVar("rollout")


def contain_exits(loop: asyncio.AbstractEventLoop) -> None:
    """From now on a task that a rollout starts on this loop fails where it would exit, as a tool of an agent may.

    Its SystemExit would end the event loop of the engine's actor, and hang the run.
    """

    async def contained(work: Coroutine) -> Any:
        try:
            return await work
        except (SystemExit, KeyboardInterrupt) as error:
            raise RuntimeError(f"a task of the agent raised {type(error).__name__}: {error}") from error

    def task_of(loop: asyncio.AbstractEventLoop, work: Any, **settings: Any) -> asyncio.Task:
        is_rollouts = current_rollout.get(None) is not None and asyncio.iscoroutine(work)
        return asyncio.Task(contained(work) if is_rollouts else work, loop=loop, **settings)

    if loop.get_task_factory() is None:
        loop.set_task_factory(task_of)

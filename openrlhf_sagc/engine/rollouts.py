"""In an engine's actor: rollouts that are timed, can be stopped, and say why they have no reward.

The way of a rollout, in by `RolloutExecutor.execute` and out by it:

1. `_begin` takes a `Dispatch`, and `_execute` each of its rollouts as a `RunningRollout` (running_rollouts.py), of a group or
   of an evaluation, whose task is `_sample`. It ends with the task, by `stop`, or by the agent's timeout.
2. `_sample` refuses what cannot be rolled out, and makes attempts with copies of their own (attempts.py).
3. The executor of OpenRLHF or of an agent generates, by `EngineOfAgents`, which knows each request, its tokens and its wait.
4. OpenRLHF's executor asks for the reward: `Rewards.fetch` (rewards.py), of a function in threads (reward_threads.py) or of a
   server (reward_server.py). Its answer is checked (answers.py), or asked for again.
5. The response becomes plain data (responses.py). A `Failure` anywhere on the way costs the sample, and its line says why.
6. `_execute` adds what was measured, a `Rollout`, and `_collect` hands it to the driver among others that have `Ended`.
"""

import asyncio
import gc
import math
import pickle
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from weakref import WeakValueDictionary

from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.envs import enable_envs_cache
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_sagc.decisions.records import ROLLOUT, AskBegun, Begun, Collect, CountDrafts, Dispatch, Ended, Rollout
from openrlhf_sagc.engine.answers import Failure, Missing, check_scores, describe
from openrlhf_sagc.engine.attempts import check_prompt, for_one_attempt, take_any_reward
from openrlhf_sagc.engine.responses import num_action_tokens, plain_response
from openrlhf_sagc.engine.rewards import Rewards, pause_before
from openrlhf_sagc.engine.running_rollouts import (
    EngineOfAgents,
    RunningGroup,
    RunningRollout,
    contain_exits,
    current_rollout,
)

RESETS = 50  # attempts at resetting the prefix cache
RESET_PAUSE = 0.2  # seconds between them
MOST_COLLECTED = 64  # rollouts in one answer, which the driver then handles while its processor's cache holds them


def watch_rollouts(
    engine_actor,
    *,
    timeout: float,
    retries: int,
    agent_timeout: float | None = None,
    may_lack_log_probs: bool = False,
) -> None:
    """Run in an engine's actor: from now on its rollouts go through a `RolloutExecutor`; a second call does nothing.

    Args:
        engine_actor: OpenRLHF's RolloutRayActor.
        timeout: seconds of a reward, see `Rewards`.
        retries: further attempts at a reward, or at a whole sample of an agent.
        agent_timeout: seconds that an agent may take between two of its requests to the engine; None is no limit.
        may_lack_log_probs: an agent's response, see `plain_response`.
    """
    enable_envs_cache()  # vLLM's frontend would read the environment for every token
    if not isinstance(engine_actor.executor, RolloutExecutor):
        engine_actor.llm.reset_prefix_cache = partial(reset_for_sure, engine_actor.llm.reset_prefix_cache)
        engine_actor.executor = RolloutExecutor(engine_actor, timeout, retries, agent_timeout, may_lack_log_probs)
        gc.freeze()  # torch and vLLM stay; the collector would go through them again and again, while all rollouts wait


async def reset_for_sure(reset: Callable[..., Awaitable[bool]], *args, **kwargs) -> bool:
    """vLLM's `reset_prefix_cache`, again until it has worked: it does nothing while requests hold blocks of the cache.

    Raises:
        RuntimeError: it has not worked in RESETS attempts. OpenRLHF would go on, and new rollouts on the same prompts
            would use what the old weights have computed.
    """
    for _ in range(RESETS):
        if await reset(*args, **kwargs) is not False:
            return True
        await asyncio.sleep(RESET_PAUSE)
    raise RuntimeError(
        f"the prefix cache of a vLLM engine could not be reset in {RESETS * RESET_PAUSE:g} s for the new weights, since "
        "requests hold it: something besides this run's rollouts decodes there; leave --vllm.enable_prefix_caching out"
    )


def stop_rollouts(engine_actor, groups: Iterable[int] | None = None) -> None:
    """Run in an engine's actor after `watch_rollouts`: begin to stop all rollouts, or those of some groups.

    It returns at once, see `RolloutExecutor.stop`.
    """
    executor = engine_actor.executor
    if executor.loop:  # Ray calls this in another thread
        stopping = asyncio.run_coroutine_threadsafe(executor.stop(groups), executor.loop)
        stopping.add_done_callback(lambda stopping: stopping.result())  # an error is logged from here


def stop_left_over(engine_actor) -> int:
    """Run in an engine's actor after `watch_rollouts`: begin to stop requests of rollouts that are over.

    Returns:
        The requests that vLLM has; 0 also where rollouts run, since these may be theirs.
    """
    executor = engine_actor.executor
    if not executor.loop or executor.running:
        return 0
    asyncio.run_coroutine_threadsafe(executor.stop_left_over(), executor.loop)
    return engine_actor.get_num_unfinished_requests()


class RolloutExecutor:
    """An agent executor of OpenRLHF around another one; the arguments are those of `watch_rollouts`.

    Rewards of a function or a server are checked, and asked for again. Agents that raise or return no reward run again as
    a whole. One that hangs outside of the engine ends as a failure. Subclasses of OpenRLHF's executor that fetch rewards
    in a way of their own keep that way.
    """

    def __init__(
        self, engine_actor, timeout: float, retries: int, agent_timeout: float | None, may_lack_log_probs: bool
    ):
        self._may_lack_log_probs = may_lack_log_probs
        self.executor = executor = engine_actor.executor
        self.loop: asyncio.AbstractEventLoop | None = None  # known with the first rollout
        self._llm = engine_actor.llm
        self._vocabulary = engine_actor.llm.model_config.get_vocab_size()  # rows of the embedding
        self._media_tokens = frozenset(engine_actor._mm_pad_token_ids or ())  # of a vision model
        self._retries = retries
        self._jitter = random.Random(engine_actor.kwargs["seed"])  # OpenRLHF's, another one for each engine
        self.running: set[RunningRollout] = set()
        self._groups: WeakValueDictionary[int, RunningGroup] = WeakValueDictionary()  # by number, as long as they run
        # Dispatched and not collected yet; without a task those that wait for their reward.
        self._ended: asyncio.Queue[tuple[int, int, asyncio.Task | None]] = asyncio.Queue()
        # That were dispatched and run, by group and place.
        self._dispatched: dict[tuple[int, int], tuple[asyncio.Task, RunningRollout]] = {}
        self._single_turn = type(executor) is SingleTurnAgentExecutor
        take_any_reward(executor)
        self._engine = EngineOfAgents(engine_actor, running=self.running)
        self._pickled_tokenizer = b""  # with an agent's first rollout
        self._agent_timeout = None if self._single_turn else agent_timeout
        self._reward_model = self._single_turn and not executor.reward_endpoints
        rewards = Rewards(executor, timeout, retries, self._jitter)
        for name in ("_fetch_rewards_via_func", "_fetch_rewards_via_http"):
            if getattr(type(executor), name, None) is getattr(SingleTurnAgentExecutor, name):
                setattr(executor, name, rewards.fetch)

    def execute(self, *args, llm_engine, **kwargs):  # `_engine` stands for `llm_engine`, the engine's actor
        """What the inner executor returns, reward and scores as floats, and a `Rollout` under the key ROLLOUT.

        The tokens of a rollout that did not finish are those generated so far in its last attempt. Its response holds
        nothing else but prompt, label and images, as in `kwargs`. If the reward failed, reward and scores are None.

        The scheduler sends four things in the place of a prompt, since OpenRLHF's `generate_responses` is the one method of
        the actor that awaits what this returns. A `Dispatch` begins rollouts and returns at once. A `Collect` returns the
        list of those that have `Ended` since the last one, at most MOST_COLLECTED; it waits for the first. An `AskBegun`
        returns what those that run have so far. A `CountDrafts` returns the counts of each of the engine's workers.

        Raises:
            Exception: vLLM is dead.
        """
        prompt = kwargs.get("prompt")
        if isinstance(prompt, Dispatch):
            return self._begin(prompt, kwargs)
        if isinstance(prompt, Collect):
            return self._collect()
        if isinstance(prompt, AskBegun):
            return self._begun()
        if isinstance(prompt, CountDrafts):
            return self._llm.collective_rpc("draft_counts")
        return self._execute(RunningGroup(), args, kwargs, None)  # of an evaluation

    async def _begin(self, dispatch: Dispatch, kwargs: dict) -> None:
        """Begin these rollouts, all of which have the other settings in `kwargs`."""
        if dispatch.earlier:
            await self._llm.collective_rpc("remember_responses", args=(dispatch.earlier,))
        for number, prompt, places, begun in dispatch.shares:
            group = self._groups.setdefault(number, RunningGroup())
            own = {"prompt": prompt.text, "label": prompt.label, "images": prompt.images}
            for place in places:
                tell = partial(self._ended.put_nowait, (number, place, None)) if dispatch.tells else None
                before = begun.get(place) if self._single_turn else None
                rollout = RunningRollout(self._agent_timeout, self._engine, tell, before)
                task = asyncio.create_task(self._execute(group, (), {**kwargs, **own}, rollout))
                self._dispatched[number, place] = task, rollout
                task.add_done_callback(partial(self._note_end, number, place))

    def _note_end(self, number: int, place: int, task: asyncio.Task) -> None:
        del self._dispatched[number, place]
        self._ended.put_nowait((number, place, task))

    async def _begun(self) -> dict[tuple[int, int], Begun | None]:
        """What a checkpoint keeps of each dispatched rollout; an agent's begins anew, as nobody knows what it has done."""
        requests = self._llm.output_processor
        return {
            key: rollout.so_far(requests) if self._single_turn else None
            for key, (_, rollout) in self._dispatched.items()
        }

    async def _collect(self) -> list[Ended]:
        ended = [await self._ended.get()]
        ended += [self._ended.get_nowait() for _ in range(min(self._ended.qsize(), MOST_COLLECTED - 1))]
        return [Ended(number, place, task.result() if task else None) for number, place, task in ended]

    async def _execute(self, group: RunningGroup, args: tuple, kwargs: dict, rollout: RunningRollout | None) -> dict:
        if not self._single_turn:
            # A group has a tokenizer of its own, since agents may change its settings or share threads.
            self._pickled_tokenizer = self._pickled_tokenizer or pickle.dumps(kwargs["hf_tokenizer"])
            if group.tokenizer is None:
                group.tokenizer = pickle.loads(self._pickled_tokenizer)
            kwargs["hf_tokenizer"] = group.tokenizer
            contain_exits(asyncio.get_running_loop())
        self.loop = asyncio.get_running_loop()
        rollout = rollout or RunningRollout(self._agent_timeout, self._engine)
        start = time.perf_counter()
        rollout.task = asyncio.create_task(self._sample(rollout, args, kwargs))
        rollout.task.add_done_callback(rollout.end)
        self.running.add(rollout)
        group.running.add(rollout)
        try:
            await rollout.ended
            while rollout.requests:  # which the agent did not wait for; again, since vLLM may not know them yet
                await self._llm.abort(list(rollout.requests))
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            rollout.closed = True  # so that the task takes this cancellation for no fault of the agent's
            rollout.task.cancel()
            raise
        finally:
            self.running.remove(rollout)
            group.running.remove(rollout)
        seconds = time.perf_counter() - start
        if rollout.task.cancelled() and not rollout.closed:  # by its agent, in its last moment
            rollout.closed, rollout.failure = True, "the agent cancelled its own task"
        response = None if rollout.closed else rollout.task.result()
        measured = Rollout(
            tokens=rollout.tokens,
            seconds=seconds,
            queue_seconds=rollout.queue_seconds,
            finished=response is not None,
            stopped=rollout.stopped,
            failure=None if rollout.stopped else rollout.failure,
            reward_seconds=min(rollout.reward_seconds, seconds),
            refused=rollout.refused,
            retried=rollout.retried,
        )
        if response is None:
            response = {name: kwargs.get(name) for name in ("prompt", "label", "images")}
        return {**response, ROLLOUT: measured}

    async def stop(self, groups: Iterable[int] | None = None) -> None:
        """End all rollouts, or those of some groups as far as they have begun; also those that begin meanwhile.

        When it returns none is left, and new ones run normally. Where all end, requests that belong to no rollout end as
        well: the rollouts that they were made for are over.
        """
        known = [self._groups.get(number) for number in groups or ()]
        for rollouts in [self.running] if groups is None else [group.running for group in known if group is not None]:
            while running := [rollout for rollout in rollouts if not rollout.ended.done()]:
                for rollout in running:
                    rollout.stop()
                await self._llm.abort([request for rollout in running for request in rollout.requests])
                # Again soon: vLLM does not know a request yet that is just being submitted.
                await asyncio.wait([rollout.ended for rollout in running], timeout=0.005)
        if groups is not None:
            return
        left_over = self._engine.requests.copy()  # no rollout runs now; later requests are those of new ones
        while left_over := left_over & self._engine.requests.copy():  # an agent's server changes them in its thread
            await self._llm.abort(left_over)
            await asyncio.sleep(0.005)

    async def stop_left_over(self) -> None:
        """End what vLLM still decodes though no rollout runs: requests that nobody waits for, however they were made."""
        if not self.running:
            await self._llm.abort(list(self._llm.output_processor.external_req_ids))

    async def _sample(self, rollout: RunningRollout, args: tuple, kwargs: dict) -> dict | None:
        """The inner executor's response with its reward checked; None if the request was refused or an agent failed."""
        current_rollout.set(rollout)
        who = "OpenRLHF's executor" if self._single_turn else "the agent"
        try:
            check_prompt(self.executor, kwargs)
        except Failure as refusal:
            rollout.failure = str(refusal)
            return None
        for attempt in range(self._retries + 1):
            await asyncio.sleep(pause_before(attempt, self._jitter))
            rollout.tokens, rollout.failure = 0, None
            try:
                own = for_one_attempt(kwargs, is_agent=not self._single_turn)
                with rollout.outside_the_engine():
                    response = await self.executor.execute(*args, llm_engine=self._engine, **own)
                if rollout.closed:
                    break
                response = plain_response(
                    response,
                    kwargs,
                    who=who,
                    vocabulary=self._vocabulary,
                    media_tokens=self._media_tokens,
                    may_lack_log_probs=self._may_lack_log_probs,
                )
                rollout.tokens = num_action_tokens(response["action_ranges"])
                if self._reward_model:
                    return response
                reward = response["reward"]
                if isinstance(reward, Missing):
                    rollout.failure = reward.failure
                if rollout.failure and (reward is None or isinstance(reward, float) and math.isnan(reward)):
                    response |= {"reward": None, "scores": None}
                else:
                    check_scores(response, who, "reward")
                    rollout.failure = None  # the agent may do without the reward that could not be fetched
                return response
            except BaseException as error:  # an agent's tool may raise CancelledError or SystemExit by itself
                if rollout.closed:
                    break
                if self._llm.errored or isinstance(error, EngineDeadError):
                    raise
                rollout.failure = describe(error)
                # A prompt that was refused once is refused again; and one who closes this coroutine waits for no attempt.
                if self._single_turn or isinstance(error, GeneratorExit):
                    break
        return None

"""Rewards inside an engine's actor: asked for with a time limit, checked, and asked for again."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from openrlhf_sagc.engine.answers import Failure, Missing, NoReward, check_scores, describe
from openrlhf_sagc.engine.attempts import own_copy
from openrlhf_sagc.engine.extra_logs import LOGS, as_logs
from openrlhf_sagc.engine.reward_server import Backlog, Rejected, ServerAway, named, own_error, post, shortened
from openrlhf_sagc.engine.reward_threads import RewardThreads
from openrlhf_sagc.redaction import without_secrets

PAUSE = 0.5  # seconds before the second attempt; every later pause is twice the one before
LONGEST_PAUSE = 30.0  # seconds
PATIENCE = 60.0  # seconds in which a server that is away is asked again, which count as no attempt
LEAST = 4.0  # seconds in which any server is asked again, which count as none either: OpenRLHF does that once a second
SOON = 0.3  # seconds between these attempts, at most: what a server that is there again is asked late


class Rewards:
    """The reward function or the reward servers of an executor of OpenRLHF.

    Args:
        executor: OpenRLHF's SingleTurnAgentExecutor.
        timeout: seconds for a request; for a call of a function see `RewardThreads`.
        retries: further attempts.
        jitter: spreads the pauses before them.
        note_failure: is called, in the task that asked, with the reason why there is no reward after all attempts.
        note_request: is called there after a request that failed: whether the server was away, and whether it is made again.
    """

    def __init__(
        self,
        executor,
        timeout: float,
        retries: int,
        jitter: random.Random,
        note_failure: Callable[[str], None],
        note_request: Callable[[bool, bool], None] = lambda *_: None,
    ):
        self._executor = executor
        self._timeout = timeout
        self._retries = retries
        self._jitter = jitter
        self._note_failure, self._note_request = note_failure, note_request
        self._threads = RewardThreads(timeout)
        self._large = asyncio.Semaphore(1)  # see `post`
        self._backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)  # of servers, by their addresses

    async def fetch(self, queries_list: list, prompts_list: list, labels_list: list) -> list[dict]:
        """Instead of OpenRLHF's methods: one checked answer for each query, or one whose reward is `Missing`."""
        return await asyncio.gather(*map(self._fetch_one, queries_list, prompts_list, labels_list))

    async def _fetch_one(self, query, prompt, label) -> dict:
        asking = _Asking(self._retries, self._jitter, self._timeout, is_server=not self._executor.reward_func)
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)  # without a thread
            try:
                return await self._ask({"query": [query], "prompts": [own_copy(prompt)], "labels": [own_copy(label)]})
            except Exception as error:
                failure, pause = describe(error), asking.pause_after(error)
                self._note_request(isinstance(error, ServerAway), pause is not None)
        self._note_failure(failure)
        return {"rewards": Missing(failure)}

    async def _ask(self, sample: dict) -> dict:
        if self._executor.reward_func:
            call = self._threads.call(self._executor.reward_func, *sample.values())
            return await self._answer("the reward function", call)
        url = next(self._executor._reward_endpoint_cycle)
        call = asyncio.wait_for(post(url, sample, self._large, self._backlogs[url]), self._timeout)
        return await self._answer(f"the reward server {named(url)}", call)

    async def _answer(self, who: str, call: Awaitable) -> dict:
        """The answer with `rewards` and `scores` as numbers, and `extra_logs` as a dict.

        Without a dict the answer is the reward itself, as it was before OpenRLHF 0.8.1.
        """
        try:
            answer = await call
        except asyncio.TimeoutError:
            raise Failure(f"{who} did not answer within {self._timeout:g} s") from None
        if isinstance(answer, (list, tuple, int, float)) or hasattr(answer, "tolist"):
            answer = {"rewards": answer}
        if not isinstance(answer, dict):
            raise NoReward(f"{who} returned a {type(answer).__name__} instead of a number or a dict")
        if "rewards" not in answer:
            said = own_error(answer)
            but = shortened(said) if said else without_secrets(repr(list(answer)))[:100]
            raise Failure(f"{who} returned no 'rewards' but {but}")
        answer = dict(answer)
        check_scores(answer, who, "rewards")
        answer[LOGS] = as_logs(answer.get(LOGS))
        return answer


class _Asking:
    """When the reward of a sample is asked for again after an error, counted from now.

    Args:
        retries: further attempts.
        jitter: spreads the pauses: samples that fail together ask again at different times.
        timeout: seconds for a request, the most that its server may put off the next one.
        is_server: whether it is a server that is asked.
    """

    def __init__(self, retries: int, jitter: random.Random, timeout: float, *, is_server: bool):
        self._retries, self._jitter, self._timeout, self._is_server = retries, jitter, timeout, is_server
        self._attempts = self._again = 0
        self._start = time.monotonic()
        self._away_since: float | None = None

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until the reward is asked for again; None if it is not."""
        if self._is_server and isinstance(error, NoReward):
            return None
        pause = self._pause_after(error, time.monotonic())
        wait = min(getattr(error, "retry_after", 0.0), self._timeout)
        return max(pause, wait + self._jitter.uniform(0.0, PAUSE)) if wait and pause is not None else pause

    def _pause_after(self, error: Exception, now: float) -> float | None:
        """The same where the server asks for no pause."""
        self._away_since = (self._away_since or now) if isinstance(error, ServerAway) else None
        if self._is_server and now - self._start < LEAST:
            return SOON * self._jitter.uniform(0.5, 1.0)
        if self._away_since is not None and now - self._away_since < PATIENCE:
            self._again += 1
        elif isinstance(error, Rejected) or self._attempts == self._retries:
            return None
        else:
            self._attempts += 1
        return pause_before(self._attempts + self._again, self._jitter)


def pause_before(attempt: int, jitter: random.Random) -> float:
    """Seconds before an attempt, counted from 0: none before the first, then twice as many each time, up to LONGEST_PAUSE."""
    if not attempt:
        return 0.0
    return min(PAUSE * 2.0 ** min(attempt - 1, 100), LONGEST_PAUSE) * jitter.uniform(0.5, 1.0)

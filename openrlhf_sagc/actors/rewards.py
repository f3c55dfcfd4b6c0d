"""Rewards inside an engine's actor: asked for with a time limit, checked, and asked for again."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from openrlhf_sagc.actors.answers import Failure, Missing, check_scores, describe
from openrlhf_sagc.actors.attempts import own_copy
from openrlhf_sagc.actors.extra_logs import LOGS, as_logs
from openrlhf_sagc.actors.reward_server import ServerAway, own_error, post, shortened
from openrlhf_sagc.actors.reward_threads import RewardThreads
from openrlhf_sagc.redaction import without_secrets

PAUSE = 0.5  # seconds before the second attempt; every later pause is twice the one before
LONGEST_PAUSE = 30.0  # seconds
PATIENCE = 60.0  # seconds in which a server that is away is asked again, which count as no attempt


class Rewards:
    """The reward function or the reward servers of an executor of OpenRLHF.

    Args:
        executor: OpenRLHF's SingleTurnAgentExecutor.
        timeout: seconds for a request; for a call of a function see `RewardThreads`.
        retries: further attempts.
        jitter: spreads the pauses before them.
        note_failure: is called, in the task that asked, with the reason why there is no reward after all attempts.
    """

    def __init__(
        self,
        executor,
        timeout: float,
        retries: int,
        jitter: random.Random,
        note_failure: Callable[[str], None],
    ):
        self._executor = executor
        self._timeout = timeout
        self._retries = retries
        self._jitter = jitter
        self._note_failure = note_failure
        self._threads = RewardThreads(timeout)
        self._large = asyncio.Semaphore(1)  # see `post`

    async def fetch(self, queries_list: list, prompts_list: list, labels_list: list) -> list[dict]:
        """Instead of OpenRLHF's methods: one checked answer for each query, or one whose reward is `Missing`."""
        return await asyncio.gather(*map(self._fetch_one, queries_list, prompts_list, labels_list))

    async def _fetch_one(self, query, prompt, label) -> dict:
        attempts = again = 0
        away_since = None  # seconds on the clock
        while attempts <= self._retries:
            await pause_before(attempts + again, self._jitter)  # without a slot
            try:
                return await self._ask({"query": [query], "prompts": [own_copy(prompt)], "labels": [own_copy(label)]})
            except Exception as error:
                failure = describe(error)
                now = time.monotonic()
                away_since = (away_since or now) if isinstance(error, ServerAway) else None
                if away_since is not None and now - away_since < PATIENCE:
                    again += 1
                else:
                    attempts += 1
        self._note_failure(failure)
        return {"rewards": Missing(failure)}

    async def _ask(self, sample: dict) -> dict:
        if self._executor.reward_func:
            call = self._threads.call(self._executor.reward_func, *sample.values())
            return await self._answer("the reward function", call)
        url = next(self._executor._reward_endpoint_cycle)
        call = asyncio.wait_for(post(url, sample, self._large), self._timeout)
        return await self._answer(f"the reward server {without_secrets(url)}", call)

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
            raise Failure(f"{who} returned a {type(answer).__name__} instead of a number or a dict")
        if "rewards" not in answer:
            said = own_error(answer)
            but = shortened(said) if said else without_secrets(repr(list(answer)))[:100]
            raise Failure(f"{who} returned no 'rewards' but {but}")
        answer = dict(answer)
        check_scores(answer, who, "rewards")
        answer[LOGS] = as_logs(answer.get(LOGS))
        return answer


async def pause_before(attempt: int, jitter: random.Random) -> None:
    """Wait before an attempt, counted from 0, unless it is the first.

    The pause doubles up to LONGEST_PAUSE. Samples that fail together ask again at different times.
    """
    if attempt:
        longest = min(PAUSE * 2.0 ** min(attempt - 1, 100), LONGEST_PAUSE)
        await asyncio.sleep(longest * jitter.uniform(0.5, 1.0))

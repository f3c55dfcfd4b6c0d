"""In an engine's actor: a reward is asked for with a time limit, checked, and asked for again."""

import asyncio
import random
import time
from collections import defaultdict
from contextlib import nullcontext

from openrlhf_sagc.engine.answers import LOGS, Failure, Missing, NoReward, as_logs, check_scores, describe
from openrlhf_sagc.engine.attempts import own_copy
from openrlhf_sagc.engine.reward_server import Backlog, Rejected, ServerAway, named, own_error, post, shortened
from openrlhf_sagc.engine.reward_threads import RewardThreads
from openrlhf_sagc.engine.running_rollouts import current_rollout
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
    """

    def __init__(self, executor, timeout: float, retries: int, jitter: random.Random):
        self.executor = executor
        self.timeout, self.retries, self.jitter = timeout, retries, jitter
        self._threads = RewardThreads(timeout)
        self._large = asyncio.Semaphore(1)  # see `post`
        self._backlogs: defaultdict[str, Backlog] = defaultdict(Backlog)  # of servers, by their addresses

    async def fetch(self, queries_list: list, prompts_list: list, labels_list: list) -> list[dict]:
        """Instead of OpenRLHF's methods: one checked answer for each query, or one whose reward is `Missing`.

        The rollout that this runs for counts the seconds, the requests that failed, and why there is no reward; raised
        instead, that would cost the response as well. In a thread of an agent's own nobody knows which rollout that is.
        """
        rollout = current_rollout.get(None)
        with rollout.waits_for_its_reward() if rollout else nullcontext():
            return await asyncio.gather(*map(self._fetch_one, queries_list, prompts_list, labels_list))

    async def _fetch_one(self, query, prompt, label) -> dict:
        rollout = current_rollout.get(None)
        asking = _Asking(self)
        pause: float | None = 0.0
        while pause is not None:
            await asyncio.sleep(pause)  # without a thread
            try:
                return await self._ask({"query": [query], "prompts": [own_copy(prompt)], "labels": [own_copy(label)]})
            except Exception as error:
                failure, pause = describe(error), asking.pause_after(error)
                if rollout:
                    rollout.refused += isinstance(error, ServerAway)
                    rollout.retried += pause is not None
        if rollout and not rollout.closed:
            rollout.failure = failure
        return {"rewards": Missing(failure)}

    async def _ask(self, sample: dict) -> dict:
        """The answer with `rewards` and `scores` as numbers, and `extra_logs` as a dict.

        Without a dict the answer is the reward itself, as it was before OpenRLHF 0.8.1.
        """
        if self.executor.reward_func:
            who, call = "the reward function", self._threads.call(self.executor.reward_func, *sample.values())
        else:
            url = next(self.executor._reward_endpoint_cycle)
            call = asyncio.wait_for(post(url, sample, self._large, self._backlogs[url]), self.timeout)
            who = f"the reward server {named(url)}"
        try:
            answer = await call
        except asyncio.TimeoutError:
            raise Failure(f"{who} did not answer within {self.timeout:g} s") from None
        if isinstance(answer, (list, tuple, int, float)) or hasattr(answer, "tolist"):
            answer = {"rewards": answer}
        if not isinstance(answer, dict):
            raise NoReward(f"{who} returned a {type(answer).__name__} instead of a number or a dict")
        if "rewards" not in answer:
            said = own_error(answer)
            but = shortened(said) if said else without_secrets(repr(list(answer)))[:100]
            raise Failure(f"{who} returned no 'rewards' but {but}")
        answer = {**answer, LOGS: as_logs(answer.get(LOGS))}
        check_scores(answer, who, "rewards")
        return answer


class _Asking:
    """When the reward of a sample is asked for again after an error, counted from now."""

    def __init__(self, rewards: Rewards):
        self._of = rewards
        self._attempts = self._again = 0
        self._start = time.monotonic()
        self._away_since: float | None = None

    def pause_after(self, error: Exception) -> float | None:
        """Seconds until the reward is asked for again; None if it is not."""
        is_server = not self._of.executor.reward_func
        if is_server and isinstance(error, NoReward):
            return None
        now = time.monotonic()
        self._away_since = (self._away_since or now) if isinstance(error, ServerAway) else None
        if is_server and now - self._start < LEAST:
            pause = SOON * self._of.jitter.uniform(0.5, 1.0)
        else:
            if self._away_since is not None and now - self._away_since < PATIENCE:
                self._again += 1
            elif isinstance(error, Rejected) or self._attempts == self._of.retries:
                return None
            else:
                self._attempts += 1
            pause = pause_before(self._attempts + self._again, self._of.jitter)
        wait = min(getattr(error, "retry_after", 0.0), self._of.timeout)  # as the server asks for
        return max(pause, wait + self._of.jitter.uniform(0.0, PAUSE)) if wait else pause


def pause_before(attempt: int, jitter: random.Random) -> float:
    """Seconds before an attempt, counted from 0: none before the first, then twice as many each time, up to LONGEST_PAUSE."""
    if not attempt:
        return 0.0
    return min(PAUSE * 2.0 ** min(attempt - 1, 100), LONGEST_PAUSE) * jitter.uniform(0.5, 1.0)

import asyncio
from types import SimpleNamespace

import pytest

from openrlhf_sagc.timing import TimedExecutor, time_rollouts


class Engine:
    """vLLM as an executor sees it: every request waits 0.3 s (by its statistics) and decodes for 0.02 s."""

    kind = "engine"

    def __init__(self, statistics=True):
        self.statistics = statistics

    async def generate(self, tokens, sampling_params, multi_modal_data=None):
        await asyncio.sleep(0.02)
        stats = SimpleNamespace(queued_ts=5.0, scheduled_ts=5.3) if self.statistics else None
        return SimpleNamespace(metrics=stats, tokens=tokens)


class TwoTurns:
    async def execute(self, prompt, sampling_params, *, llm_engine):
        assert llm_engine.kind == "engine"
        for _ in range(2):
            output = await llm_engine.generate(prompt, sampling_params, multi_modal_data=None)
            await asyncio.sleep(prompt)  # the tool
        return {"reward": 1.0, "tokens": output.tokens}


def test_rollouts_side_by_side_have_their_own_seconds():
    actor = SimpleNamespace(executor=TwoTurns())
    time_rollouts(actor)

    async def group():
        engine = Engine()
        return await asyncio.gather(*(actor.executor.execute(nap, None, llm_engine=engine) for nap in (0.0, 0.2)))

    quick, slow = asyncio.run(group())
    assert quick["reward"] == 1.0 and quick["tokens"] == 0.0
    assert 0.04 <= quick["seconds"] < 0.4 <= slow["seconds"]
    assert quick["queue_seconds"] == slow["queue_seconds"] == pytest.approx(0.6)


def test_without_statistics_nothing_counts_as_queued():
    response = asyncio.run(TimedExecutor(TwoTurns()).execute(0.0, None, llm_engine=Engine(statistics=False)))
    assert response["queue_seconds"] == 0.0

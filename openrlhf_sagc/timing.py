"""Seconds of each rollout, measured inside the engine's actor: tools, slow nodes and many turns count, tokens or not."""

import time


class TimedExecutor:
    """Agent executor of OpenRLHF around another one; adds `seconds` and `queue_seconds` to every response.

    `seconds` goes from the dispatch inside the engine's actor to the finished response with its reward;
    `queue_seconds` is the part of it that the rollout's requests waited for vLLM's scheduler.
    """

    def __init__(self, executor):
        self.executor = executor

    async def execute(self, *args, llm_engine, **kwargs) -> dict:
        """What the inner executor returns, with the two fields added."""
        engine = _QueueTimer(llm_engine)
        start = time.perf_counter()
        response = await self.executor.execute(*args, llm_engine=engine, **kwargs)
        response["seconds"] = time.perf_counter() - start
        response["queue_seconds"] = engine.queue_seconds
        return response


class _QueueTimer:
    """The engine as one rollout sees it; sums up how long the rollout's requests were queued."""

    def __init__(self, engine):
        self._engine = engine
        self.queue_seconds = 0.0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def generate(self, *args, **kwargs):
        output = await self._engine.generate(*args, **kwargs)
        if output.metrics is not None:  # None where vLLM logs no statistics
            self.queue_seconds += max(output.metrics.scheduled_ts - output.metrics.queued_ts, 0.0)
        return output


def time_rollouts(engine_actor) -> None:
    """Run in an engine's actor: from now on its responses carry their seconds."""
    engine_actor.executor = TimedExecutor(engine_actor.executor)

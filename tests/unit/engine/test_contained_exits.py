"""Tasks of agents that exit."""

import asyncio
import sys

import pytest
from engine_actor import Actor, Agent, run

from openrlhf_sagc.decisions.records import ROLLOUT


@pytest.mark.parametrize("leave", [sys.exit, lambda: exec("raise KeyboardInterrupt")])
def test_an_exit_in_a_task_of_an_agent_costs_its_sample_alone(leave):
    class Exits(Agent):
        async def tool(self):
            leave()

        async def execute(self, label, **kwargs):
            if label == "exits":
                await asyncio.gather(self.tool(), asyncio.sleep(0))
            return await super().execute(**kwargs)

    async def both():
        actor = Actor(Exits(1.0))
        return await asyncio.gather(actor.rollout("exits"), actor.rollout("stays"))

    exited, stayed = run(both())
    assert exited[ROLLOUT].failure.startswith("RuntimeError: a task of the agent raised ") and stayed["reward"] == 1.0


def test_tasks_outside_of_rollouts_are_as_they_were():
    async def check():
        actor = Actor(Agent(1.0))
        await actor.rollout()

        async def own():
            return asyncio.current_task().get_coro().__name__

        return await asyncio.create_task(own(), name="mine")

    assert run(check()) == "own"

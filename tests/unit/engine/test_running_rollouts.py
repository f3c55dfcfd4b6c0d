"""What a running rollout asks of the engine, and what it counts: on the engine of engine_actor.py."""

import asyncio
import sys

import pytest
from engine_actor import Actor, Agent, run
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm import SamplingParams
from vllm.envs import _is_envs_cache_enabled
from vllm.sampling_params import RequestOutputKind

from openrlhf_sagc.decisions.records import ROLLOUT


def test_a_requests_sampling_parameters_stay_as_the_agent_has_them():
    class Keeps(Agent):
        async def execute(self, **kwargs):
            response = await super().execute(**kwargs)
            self.sampling_params = kwargs["sampling_params"]
            return response

    agent = Keeps(1.0)
    run(Actor(agent).rollout())
    assert vars(agent.sampling_params) == {"max_tokens": 5, "logprobs": None}


def test_without_statistics_nothing_counts_as_queued():
    assert run(Actor(Agent(1.0), statistics=False).rollout())[ROLLOUT].queue_seconds == 0.0


@pytest.mark.parametrize("executor, text", [(Agent(1.0), True), (SingleTurnAgentExecutor(None), False)])
def test_vllm_makes_one_output_and_text_where_it_is_read(executor, text):
    """As OpenRLHF's actor asks for it, whose method the scheduler calls too."""
    actor, asked = Actor(executor), []
    generate, cls = actor.llm.generate, RolloutRayActor.__ray_metadata__.modified_class

    def note(tokens, sampling_params, request_id):
        asked.append((sampling_params.output_kind, sampling_params.detokenize))
        return generate(tokens, sampling_params, request_id)

    actor.llm.generate = note
    run(cls.generate_responses(actor, "prompt", "", SamplingParams(max_tokens=5), 99))
    assert asked == [(RequestOutputKind.FINAL_ONLY, text)]


def test_vllm_reads_its_environment_once():
    watched = Actor(Agent(1.0))
    assert run(watched.rollout())["reward"] == 1.0 and _is_envs_cache_enabled()


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

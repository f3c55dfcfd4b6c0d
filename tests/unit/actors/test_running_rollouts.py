"""What a running rollout asks of the engine, and what it counts: on the engine of engine_actor.py."""

from types import SimpleNamespace

import pytest
from engine_actor import Actor, Agent, run
from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.envs import _is_envs_cache_enabled

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


@pytest.mark.parametrize(
    "executor, stop, asked_before, asked_then",
    [
        (Agent(1.0), None, True, True),
        (Agent(1.0), None, False, False),  # an agent that wants no text gets none
        (SingleTurnAgentExecutor(None), None, True, False),
        (SingleTurnAgentExecutor(None), ["!"], True, True),
    ],
)
def test_vllm_makes_the_text_of_a_response_where_it_is_read(executor, stop, asked_before, asked_then):
    actor, asked = Actor(executor), []
    generate = actor.generate

    async def note(tokens, sampling_params, **kwargs):
        asked.append(sampling_params.detokenize)
        return await generate(tokens, sampling_params, **kwargs)

    actor.generate = note
    request = actor.request()
    request["sampling_params"] = SimpleNamespace(max_tokens=5, logprobs=None, stop=stop, detokenize=asked_before)
    run(actor.executor.execute(**request))
    assert asked == [asked_then]


def test_vllm_reads_its_environment_once():
    watched = Actor(Agent(1.0))
    assert run(watched.rollout())["reward"] == 1.0 and _is_envs_cache_enabled()

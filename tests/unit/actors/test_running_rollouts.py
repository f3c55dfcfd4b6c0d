"""What a running rollout asks of the engine, and what it counts: on the engine of engine_actor.py."""

import pytest
from engine_actor import Actor, Agent, run
from openrlhf.utils.agent import SingleTurnAgentExecutor

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


@pytest.mark.parametrize("executor, has_text", [(Agent(1.0), True), (SingleTurnAgentExecutor(None), False)])
def test_vllm_makes_the_text_of_a_response_for_agents_alone(executor, has_text):
    actor, asked = Actor(executor), []
    generate = actor.generate

    async def note(tokens, sampling_params, **kwargs):
        asked.append(sampling_params.detokenize)
        return await generate(tokens, sampling_params, **kwargs)

    actor.generate = note
    run(actor.rollout())
    assert asked == [has_text]

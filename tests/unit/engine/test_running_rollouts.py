"""What a running rollout asks of the engine, and what it counts: on the engine of engine_actor.py."""

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

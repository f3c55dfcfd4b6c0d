"""A rollout that goes on from what a checkpoint has of it: the response is the one that it would have been."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from engine_actor import Actor, Agent, Tokenizer, run
from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm import SamplingParams

from openrlhf_sagc.decisions.records import ROLLOUT, AskBegun, Begun, Collect, Dispatch, Prompt, Share

LENGTH = 40  # tokens of a response


class Counting(Actor):
    """An engine whose every token is the number of those before it, and that keeps them as vLLM does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.llm.output_processor = SimpleNamespace(external_req_ids={}, request_states={})
        self.asked = []

    async def _generate(self, tokens, sampling_params, request_id):
        tokens, known, made, log_probs = tokens["prompt_token_ids"], self.llm.output_processor, [], []
        self.asked.append((tokens, sampling_params.max_tokens, sampling_params.min_tokens))
        known.external_req_ids[request_id], known.request_states["inner"] = ["inner"], SimpleNamespace(
            detokenizer=SimpleNamespace(output_token_ids=made),
            logprobs_processor=SimpleNamespace(logprobs=log_probs if sampling_params.logprobs is not None else None),
        )
        while len(made) < sampling_params.max_tokens:
            await asyncio.sleep(0.005)
            made.append(len(tokens) + len(made))
            log_probs.append({made[-1]: SimpleNamespace(logprob=-float(made[-1]))})
        del known.external_req_ids[request_id]
        output = SimpleNamespace(token_ids=made, text="", finish_reason="length", logprobs=log_probs)
        yield SimpleNamespace(outputs=[output], metrics=None)

    def dispatch(self, begun=None, logprobs=1):
        params = SamplingParams(max_tokens=LENGTH, min_tokens=20, logprobs=logprobs)
        share = Share(3, Prompt("prompt", "", None, 1), (5,), {5: begun} if begun else {})
        return self.executor.execute(
            **self.request() | {"prompt": Dispatch([share]), "sampling_params": params, "max_length": 99}
        )

    async def collected(self):
        (ended,) = await asyncio.wait_for(self.executor.execute(prompt=Collect(), llm_engine=self), 30)
        return ended.response

    async def begun(self):
        found = await self.executor.execute(prompt=AskBegun(), llm_engine=self)
        assert list(found) == [(3, 5)]
        return found[3, 5]

    async def begun_after(self, tokens):
        while (found := await self.begun()) is None or len(found.tokens) < tokens:
            await asyncio.sleep(0.002)
        return found


@pytest.mark.parametrize("logprobs", [1, None])
def test_a_response_goes_on_twice_as_if_nothing_had_been(logprobs):
    async def main():
        first, second, third = (Counting(SingleTurnAgentExecutor(None)) for _ in range(3))
        await first.dispatch(logprobs=logprobs)
        begun = await first.begun_after(5)
        await second.dispatch(begun, logprobs)
        more = await second.begun_after(len(begun.tokens) + 5)
        await third.dispatch(more, logprobs)
        whole, last = await first.collected(), await third.collected()
        (prompt, _, _), (again, left, least) = first.asked[0], third.asked[0]
        had = len(more.tokens)
        assert again == [*prompt, *more.tokens] and (left, least) == (LENGTH - had, max(20 - had, 0))
        for name in ("observation_tokens", "rollout_log_probs"):
            np.testing.assert_array_equal(whole[name], last[name])
        assert last["action_ranges"] == whole["action_ranges"] and last[ROLLOUT].tokens == LENGTH

    run(main())


def test_a_response_that_only_its_reward_is_missing_from_asks_for_that_alone(reward_file):
    async def main():
        slow = Counting(executor := reward_file("free.wait(20); return {'rewards': 0.5}"))
        await slow.dispatch()
        begun = await slow.begun_after(LENGTH)
        assert begun.finish_reason == "length"
        other = Counting(reward_file("return {'rewards': 0.25}"))
        await other.dispatch(begun)
        response = await other.collected()
        assert other.asked == [] and response["reward"] == 0.25 and response["truncated"]
        executor.reward_func.__globals__["free"].set()
        np.testing.assert_array_equal(response["observation_tokens"], (await slow.collected())["observation_tokens"])

    run(main())


def test_a_response_that_has_all_its_tokens_already_asks_for_no_more():
    """As with a smaller --rollout.max_new_tokens at the resume."""

    async def main():
        actor = Counting(SingleTurnAgentExecutor(None))
        await actor.dispatch(Begun(np.arange(LENGTH + 3, dtype=np.int32), np.zeros(LENGTH + 3, np.float32), None))
        response = await actor.collected()
        assert actor.asked == [] and response["truncated"]

    run(main())


def test_an_agents_rollout_begins_anew():
    async def main():
        actor = Actor(Agent(1.0), tokenizer=Tokenizer())
        share = Share(3, Prompt("prompt", "", None, 1), (5,), {5: Begun(np.arange(4), None, None)})
        await actor.executor.execute(**actor.request() | {"prompt": Dispatch([share])})
        assert await actor.executor.execute(prompt=AskBegun(), llm_engine=actor) == {(3, 5): None}
        (ended,) = await actor.executor.execute(prompt=Collect(), llm_engine=actor)
        assert ended.response[ROLLOUT].tokens == 5

    run(main())

"""Agent of the sleep tests: writes what its engine is asked for to the file ENGINE_LOG, a letter each, in this order.

g generate, a abort, s sleep, w wake up for weights, k wake up for the KV cache, u update a weight, p pause, r resume. A space
stands before a sleep while which requests are not finished. Every eighth response has 60 tokens, the others 4; rewards alternate.
"""

import os
from collections import Counter
from copy import deepcopy

from openrlhf.utils.agent import SingleTurnAgentExecutor
from vllm.v1.engine.async_llm import AsyncLLM


def letter(name: str, args: tuple, kwargs: dict) -> str:
    if name == "wake_up":
        return kwargs["tags"][0][0]
    if name == "collective_rpc":
        return "u" if "update_weight" in str(args[0]) else ""
    return name[0]


def recorded(name: str):
    method = getattr(AsyncLLM, name)

    def call(self, *args, **kwargs):
        busy = name == "sleep" and self.output_processor.get_num_unfinished_requests()
        with open(os.environ["ENGINE_LOG"], "a") as log:
            log.write(" " * bool(busy) + letter(name, args, kwargs))
        return method(self, *args, **kwargs)

    return call


for name in ("generate", "abort", "sleep", "wake_up", "collective_rpc", "pause_generation", "resume_generation"):
    setattr(AsyncLLM, name, recorded(name))


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self):
        super().__init__()
        self._drawn = Counter()

    async def execute(self, prompt, label, sampling_params, **kwargs):
        place = self._drawn[prompt]
        self._drawn[prompt] += 1
        sampling_params = deepcopy(sampling_params)
        sampling_params.ignore_eos = True  # and no min_tokens, for which vLLM would change the log-probabilities
        sampling_params.max_tokens = 60 if place % 8 == 7 else 4
        response = await super().execute(prompt, label, sampling_params, **kwargs)
        response["reward"] = response["scores"] = float(place % 2)
        return response

"""OpenRLHF's own executor with a reward, by the label: right, or with one of the faults that agents and rewards have.

A right prompt's first rollout of each engine has logs of many kinds, its others none. Rewards are 0 or 1 by a checksum.
"""

import asyncio
import sys
import zlib

import torch
from openrlhf.utils.agent import SingleTurnAgentExecutor


def reward_func(queries, prompts, labels, **kwargs):
    if labels[0] == "reward raises":
        raise ValueError("no verdict")
    if labels[0] == "reward exits":
        sys.exit("no judge")
    return {"rewards": torch.tensor([float(zlib.crc32(query.encode()) % 2) for query in queries])}


async def tool():
    sys.exit(4)


CHANGES = {
    "list": lambda response: [response],
    "no fields": lambda response: {},
    "None among tokens": lambda response: response | {"observation_tokens": [*response["observation_tokens"], None]},
    "unknown token": lambda response: response | {"observation_tokens": [10**9, *response["observation_tokens"]]},
    "reversed range": lambda response: response | {"action_ranges": [(6, 3)]},
    "no trained token": lambda response: response | {"action_ranges": [(0, 1)]},
    "truncated text": lambda response: response | {"truncated": "length"},
    "reward nan": lambda response: response | {"reward": float("nan")},
}


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self):
        super().__init__(__file__)
        self.seen = set()

    async def execute(self, prompt, label, sampling_params, llm_engine, **kwargs):
        if label == "refused by vLLM":
            await llm_engine.generate([10**9], sampling_params)
        if label == "raises":
            raise KeyError("state")
        if label == "exits":
            sys.exit(2)
        if label == "tool exits":
            await asyncio.gather(tool(), asyncio.sleep(1))
        if label == "cancels":
            raise asyncio.CancelledError("by a client")
        response = await super().execute(
            prompt=prompt, label=label, sampling_params=sampling_params, llm_engine=llm_engine, **kwargs
        )
        sampling_params.max_tokens = 1  # which no sibling may see
        response.pop("prompt")
        response["memory"] = self  # of a class that the driver does not know
        if label == "ok" and prompt not in self.seen:
            self.seen.add(prompt)
            response["extra_logs"] = {"solved": 1.0, "reward": 7.0, "timing/tool": 1e6, "note": "a text", "info": {}}
            response["action_ranges"] = [(start, end + 400) for start, end in response["action_ranges"]]
        if label == "many logs":
            response["extra_logs"] = {f"log {i}": i for i in range(40_000)}
        return CHANGES.get(label, dict)(response)

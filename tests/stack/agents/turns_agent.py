"""OpenRLHF's multi-turn executor with a tool as of its examples; the label, "TOKENS SCORES", is of labelled_agent.py.

Two turns of half the tokens each. With SCORES hang the tool of a prompt's first rollout never answers.
"""

import asyncio
from collections import Counter

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

DRAWN: Counter = Counter()  # rollouts of a prompt so far


class Tool(AgentInstanceBase):
    def __init__(self):
        self.turn = 0

    async def reset(self, states):
        self.place = DRAWN[states["observation"]]
        DRAWN[states["observation"]] += 1
        return states

    async def step(self, states):
        self.turn += 1
        if states["label"].endswith("hang") and self.place == 0:
            await asyncio.sleep(3600)
        return {
            "rewards": torch.tensor(float(self.place % 2) / 2),
            "environment_feedback": "" if self.turn == 2 else ",",
            "done": self.turn == 2,
            "extra_logs": {"turns": torch.tensor([self.turn])},
        }


class Turns:
    """The engine with turns of a fixed length."""

    def __init__(self, engine, tokens):
        self.engine, self.tokens = engine, tokens

    async def generate(self, tokens, sampling_params, **kwargs):
        sampling_params.ignore_eos = True
        sampling_params.max_tokens = sampling_params.min_tokens = self.tokens
        return await self.engine.generate(tokens, sampling_params, **kwargs)


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Tool)

    async def execute(self, *args, label, llm_engine, sampling_params, **kwargs):
        engine = Turns(llm_engine, int(label.split()[0]) // 2)
        params = sampling_params.clone()  # OpenRLHF's executor writes into those of the whole group
        return await super().execute(*args, label=label, llm_engine=engine, sampling_params=params, **kwargs)

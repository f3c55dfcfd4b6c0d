"""Agent of two turns whose tool sleeps at random; logs a line for each rollout: prompt's checksum, seconds it took."""

import asyncio
import os
import random
import time
import zlib
from pathlib import Path

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

TURNS, NAP, LONG_NAP = 2, 0.5, 8.0


class SleepyTool(AgentInstanceBase):
    def __init__(self):
        self.turn = 0

    async def reset(self, states):
        self.began = time.perf_counter()
        self.checksum = zlib.crc32(states["observation"].encode())
        return states

    async def step(self, states):
        self.turn += 1
        await asyncio.sleep(LONG_NAP if random.random() < 0.05 else NAP)
        done = self.turn == TURNS
        if done:
            with Path(os.environ["ROLLOUT_LOG"]).open("a") as log:
                log.write(f"{self.checksum} {time.perf_counter() - self.began}\n")
        return {
            "rewards": torch.tensor(float(zlib.crc32(states["action_text"].encode()) % 2)),
            "environment_feedback": "" if done else ",",
            "done": done,
        }


class ShortTurns:
    """The engine with at most 16 tokens a turn, which leaves room for the next one."""

    def __init__(self, engine):
        self.engine = engine

    async def generate(self, tokens, sampling_params, **kwargs):
        sampling_params.max_tokens = min(sampling_params.max_tokens, 16)
        return await self.engine.generate(tokens, sampling_params, **kwargs)


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(SleepyTool)

    async def execute(self, *args, llm_engine, **kwargs):
        return await super().execute(*args, llm_engine=ShortTurns(llm_engine), **kwargs)

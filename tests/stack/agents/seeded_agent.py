"""Agent of the bit-identity test: one request at a time, each with its own seed, so that a run can be repeated."""

import asyncio
import zlib
from collections import Counter
from copy import deepcopy
from pathlib import Path

from openrlhf.utils.agent import SingleTurnAgentExecutor


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self):
        super().__init__(str(Path(__file__).with_name("hash_reward.py")))
        self._turn = asyncio.Lock()
        self._drawn = Counter()

    async def execute(self, prompt, label, sampling_params, **kwargs):
        async with self._turn:
            sampling_params = deepcopy(sampling_params)
            sampling_params.seed = zlib.crc32(f"{prompt} {self._drawn[prompt]}".encode())
            self._drawn[prompt] += 1
            return await super().execute(prompt, label, sampling_params, **kwargs)

"""Agent of the resume tests: length and reward of a response follow from its prompt alone, so that a run can be repeated.

Every response is logged as one line, its prompt's checksum and its engine's process, in the file that ROLLOUT_LOG names.
"""

import os
import zlib
from collections import Counter
from copy import deepcopy
from pathlib import Path

from openrlhf.utils.agent import SingleTurnAgentExecutor

PERIOD = 4  # divides every group size, so that the n-th visit of a prompt looks like its first


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self):
        super().__init__()
        self._drawn = Counter()

    async def execute(self, prompt, label, sampling_params, **kwargs):
        checksum, place = zlib.crc32(prompt.encode()), self._drawn[prompt] % PERIOD
        self._drawn[prompt] += 1
        straggler = place == 0 and checksum % 3 == 0
        sampling_params = deepcopy(sampling_params)
        sampling_params.ignore_eos = True
        sampling_params.max_tokens = sampling_params.min_tokens = 40 if straggler else 6 + place
        response = await super().execute(prompt, label, sampling_params, **kwargs)
        response["reward"] = response["scores"] = float(place % 2)
        with Path(os.environ["ROLLOUT_LOG"]).open("a") as log:
            log.write(f"{checksum} {os.getpid()}\n")
        return response

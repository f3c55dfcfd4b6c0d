"""Agent of the sampling tests: a prompt's label, "TOKENS SCORES", says how long its responses are and what they score.

TOKENS is a length, or two as in 8+200: that of every fifth sample comes second. SCORES is one word: mixed, right, wrong,
half, nan, raise (always) or flaky (a sample in four raises).
"""

from collections import Counter
from copy import deepcopy

from openrlhf.utils.agent import SingleTurnAgentExecutor

SCORES = {"right": 1.0, "wrong": 0.0, "half": 0.5, "nan": float("nan")}


class AgentExecutor(SingleTurnAgentExecutor):
    def __init__(self):
        super().__init__()
        self._drawn = Counter()

    async def execute(self, prompt, label, sampling_params, **kwargs):
        tokens, scores = label.split()
        place = self._drawn[prompt]
        self._drawn[prompt] += 1
        sampling_params = deepcopy(sampling_params)
        sampling_params.ignore_eos = True
        usual, _, fifth = tokens.partition("+")
        sampling_params.max_tokens = sampling_params.min_tokens = int(fifth if fifth and place % 5 == 4 else usual)
        response = await super().execute(prompt, label, sampling_params, **kwargs)
        if scores == "raise" or (scores == "flaky" and place % 4 == 0):
            raise KeyError("answer")
        response["reward"] = response["scores"] = SCORES.get(scores, float(place % 2))
        return response

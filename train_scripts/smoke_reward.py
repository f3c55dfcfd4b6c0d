"""Reward and agent of smoke.sh: 0 or 1 by a checksum of the response, so that a model that knows nothing has both."""

import zlib

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

TURNS = 2


def score(response: str) -> float:
    return float(zlib.crc32(response.encode()) % 2)


def reward_func(queries, prompts, labels, **kwargs):
    """OpenRLHF's interface; `rewards` and `scores` are float tensors [len(queries)]."""
    rewards = torch.tensor([score(query) for query in queries])
    return {"rewards": rewards, "scores": rewards.clone()}


class Turns(AgentInstanceBase):
    """One rollout, of two turns."""

    def __init__(self):
        self.turn = 0

    async def reset(self, states, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states, **kwargs):
        self.turn += 1
        done = self.turn == TURNS
        reward = torch.tensor(score(states["action_text"]) if done else 0.0)
        return {"rewards": reward, "scores": reward, "environment_feedback": "" if done else " , ", "done": done}


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Turns)

"""What an attempt at a rollout gets: a prompt that can be rolled out, copies that nobody else changes, rewards of any kind."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

from openrlhf_sagc.engine.answers import Failure, finite_number

SHARED_BY_NOBODY = ("prompt", "label", "images", "sampling_params")  # of what an executor gets


def own_copy(value: Any) -> Any:
    """A copy of all that can change in `value`; itself if it is immutable, or if it cannot be copied."""
    try:
        return deepcopy(value)
    except Exception:  # of an object's own making
        return value


def own_tokenizer(tokenizer: Any) -> Any:
    """A copy of a tokenizer or processor, with settings of its own; the vocabulary, which is large, stays shared."""
    vocabulary = getattr(getattr(tokenizer, "tokenizer", tokenizer), "_tokenizer", None)
    if vocabulary is None:
        return tokenizer
    try:
        return deepcopy(tokenizer, {id(vocabulary): vocabulary})
    except Exception:
        return tokenizer


def for_one_attempt(request: dict, *, is_agent: bool) -> dict:
    """The request as an attempt may change it: other attempts and the group's other rollouts do not see that."""
    own = {name: own_copy(request[name]) for name in SHARED_BY_NOBODY if name in request}
    if is_agent:
        own["hf_tokenizer"] = own_tokenizer(request["hf_tokenizer"])
    return {**request, **own}


def take_any_reward(executor: Any) -> None:
    """Let the steps of OpenRLHF's multi-turn agents return any number under `rewards`; it asks for a tensor or an array."""
    agent: Any = getattr(executor, "agent_instance_cls", None)
    take_step = getattr(agent, "step", None)
    if not isinstance(executor, MultiTurnAgentExecutor) or take_step is None:
        return

    async def step(self, *args, **kwargs):
        result = await take_step(self, *args, **kwargs)
        reward = result.get("rewards") if isinstance(result, Mapping) else None
        if reward is None or hasattr(reward, "item"):
            return result
        return {**result, "rewards": np.float64(finite_number(reward, "the agent", "reward"))}

    executor.agent_instance_cls = type(agent.__name__, (agent,), {"step": step, "__module__": agent.__module__})


def check_prompt(executor, request: dict) -> None:
    """The prompt is one that OpenRLHF's own executors roll out as it is meant; other executors take what they like.

    Raises:
        Failure: it is no text, of which OpenRLHF would take the first one in a list; or it is blank.
    """
    single = type(executor).execute is SingleTurnAgentExecutor.execute
    if not single and not _is_plain_multi_turn(executor):
        return
    prompt = request["prompt"]
    if not isinstance(prompt, str):
        chat = ": --data.apply_chat_template makes texts of chats" if isinstance(prompt, (list, tuple)) else ""
        raise Failure(f"the prompt is a {type(prompt).__name__} instead of a text{chat}")
    if single and not prompt.strip() and not request.get("images"):
        raise Failure("the prompt is blank" if prompt else "the prompt is empty")


def _is_plain_multi_turn(executor) -> bool:
    """Whether an executor takes the prompt as its first observation."""
    return (
        type(executor).execute is MultiTurnAgentExecutor.execute
        and executor.agent_instance_cls.reset is AgentInstanceBase.reset
    )

"""In an engine's actor: what an attempt at a rollout gets, a prompt that can be rolled out and copies of its own."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

from openrlhf_sagc.engine.answers import Failure, finite_number

SHARED_BY_NOBODY = ("prompt", "label", "images", "sampling_params")  # of what an executor gets


def own_copy(value: Any, shared: dict[int, Any] | None = None) -> Any:
    """A copy of all that can change in `value`, but for what is `shared`, by id; itself if it cannot change or be copied."""
    try:
        return deepcopy(value, shared)
    except Exception:  # of an object's own making
        return value


def for_one_attempt(request: dict, *, is_agent: bool) -> dict:
    """The request as an attempt may change it: other attempts and the group's other rollouts do not see that.

    An agent has a tokenizer or processor with settings of its own; the vocabulary, which is large, stays shared.
    """
    own = {name: own_copy(request[name]) for name in SHARED_BY_NOBODY if name in request}
    if is_agent:
        tokenizer = request["hf_tokenizer"]
        vocabulary = getattr(getattr(tokenizer, "tokenizer", tokenizer), "_tokenizer", None)
        if vocabulary is not None:
            own["hf_tokenizer"] = own_copy(tokenizer, {id(vocabulary): vocabulary})
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
    execute, prompt = type(executor).execute, request["prompt"]
    single, multi = execute is SingleTurnAgentExecutor.execute, execute is MultiTurnAgentExecutor.execute
    if not single and not (multi and executor.agent_instance_cls.reset is AgentInstanceBase.reset):
        return  # else the prompt is the first observation
    if not isinstance(prompt, str):
        chat = ": --data.apply_chat_template makes texts of chats" if isinstance(prompt, (list, tuple)) else ""
        raise Failure(f"the prompt is a {type(prompt).__name__} instead of a text{chat}")
    if single and not prompt.strip() and not request.get("images"):
        raise Failure("the prompt is blank" if prompt else "the prompt is empty")

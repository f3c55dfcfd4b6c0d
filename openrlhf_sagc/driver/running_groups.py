"""In the driver: a pool's groups that run when a checkpoint is saved, which a resumed run goes on with.

A rollout that has ended keeps its response. One that runs keeps its tokens, and their log-probabilities under the weights that
made them, and goes on under the weights of the checkpoint, as it would have over a weight sync. An agent's begins anew.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from openrlhf_sagc.decisions.group_parts import GroupParts
from openrlhf_sagc.decisions.length_prediction import place_whole
from openrlhf_sagc.decisions.records import ROLLOUT, Begun, Ended, Group, Prompt, Rollout

# Of a response and of what has begun: arrays, which a checkpoint has as tensors.
ARRAYS = {"observation_tokens": np.int32, "rollout_log_probs": np.float32, "tokens": np.int32, "log_probs": np.float32}
Key = tuple[int, int]  # group and place


class RunningGroups(NamedTuple):
    """Groups that go on, what is left of each (see `Engines.dispatch`), and the rollouts that have ended."""

    groups: list[Group]
    left: dict[int, dict[int, Begun | None]]
    ended: list[Ended]


def state_of(
    running: Collection[GroupParts], begun: Mapping[Key, Begun | None], ended: Iterable[Ended]
) -> list[dict[str, Any]]:
    """Plain data of groups that run.

    Args:
        running: the groups.
        begun: what their rollouts have so far.
        ended: those of their rollouts that are back and that no group has yet.
    """
    late = {(number, place): response for number, place, response in ended}
    states = []
    for parts in running:
        number, step, prompt, size, *_ = group = parts.group
        responses = [late.get((number, place)) if back is None else back for place, back in enumerate(parts.responses)]
        rollouts: list[dict[str, Any] | None] = []
        for place, response in enumerate(responses):
            has = begun.get((number, place))
            if response is not None:
                rollouts.append(_with({**response, ROLLOUT: list(response[ROLLOUT])}, _as_tensor))
            else:
                rollouts.append(has and _with(has._asdict(), _as_tensor))
        states.append({"group": [number, step, list(prompt), size, group.weights], "rollouts": rollouts})
    return states


def running_groups(states: list[dict[str, Any]], num_engines: int) -> RunningGroups:
    """What `state_of` gave, each group on one of so many engines."""
    placed = place_whole([0] * num_engines, [len(state["rollouts"]) for state in states])
    going_on = RunningGroups([], {}, [])
    for state, engines in zip(states, placed):
        number, step, prompt, size, weights = state["group"]
        going_on.groups.append(Group(number, step, Prompt(*prompt), size, len(engines), engines, weights=weights))
        left: dict[int, Begun | None] = {}
        for place, saved in enumerate(state["rollouts"]):
            values = saved and _with(saved, _as_array)
            if values and ROLLOUT in values:
                going_on.ended.append(Ended(number, place, {**values, ROLLOUT: Rollout(*values[ROLLOUT])}))
            else:
                left[place] = Begun(**values) if values else None
        going_on.left[number] = left
    return going_on


def has_log_probs(state: dict[str, Any]) -> set[bool]:
    """Whether the rollouts of a saved group have log-probabilities of their tokens; empty where none has a token."""
    names = ("rollout_log_probs", "log_probs")
    return {saved[name] is not None for saved in state["rollouts"] if saved for name in names if name in saved}


def _with(values: dict[str, Any], change: Callable[[Any, type], Any]) -> dict[str, Any]:
    """These values, their arrays changed."""
    arrays = {name: ARRAYS[name] for name in ARRAYS if values.get(name) is not None}
    return {**values, **{name: change(values[name], kind) for name, kind in arrays.items()}}


def _as_tensor(array: Any, kind: type) -> torch.Tensor:
    return torch.tensor(np.asarray(array, kind))


def _as_array(tensor: Any, kind: type) -> np.ndarray:
    return np.asarray(tensor, kind)

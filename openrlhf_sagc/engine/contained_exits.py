"""Agents' tasks that end the process: their SystemExit would end the event loop of the engine's actor, and hang the run."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from openrlhf_sagc.engine.running_rollouts import current_rollout


def contain_exits(loop: asyncio.AbstractEventLoop) -> None:
    """From now on a task that a rollout starts on this loop fails where it would exit, as a tool of an agent may."""
    if loop.get_task_factory() is None:
        loop.set_task_factory(_task_of)


def _task_of(loop: asyncio.AbstractEventLoop, work: Any, **settings: Any) -> asyncio.Task:
    if current_rollout.get(None) is not None and asyncio.iscoroutine(work):
        work = _contained(work)
    return asyncio.Task(work, loop=loop, **settings)


async def _contained(work: Coroutine) -> Any:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"a task of the agent raised {type(error).__name__}: {error}") from error

"""Engines that share their GPUs sleep and wake in parts, by vLLM's own core and executor and OpenRLHF's own actor."""

import asyncio
from types import SimpleNamespace
from unittest import mock

import pytest
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor

ALL = {"weights", "kv_cache"}


class Memory(Executor):
    """vLLM's executor, whose workers have the memory of a GPU for each tag, or not."""

    def _init_executor(self):
        self.awake = set(ALL)

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        self.awake = set() if method == "sleep" else self.awake | set(kwargs["tags"])

    def check_health(self):
        pass


@pytest.fixture
def core():
    """vLLM's core, as far as it sleeps and wakes; `scheduled` says whether it decodes."""
    core = mock.Mock(spec=EngineCore, model_executor=Memory(mock.Mock()), scheduled=True)
    core.pause_scheduler = lambda **_: setattr(core, "scheduled", False)
    core.resume_scheduler = lambda: setattr(core, "scheduled", True)
    return core


@pytest.fixture
def engine(core):
    """OpenRLHF's actor, whose calls go to the core."""

    async def sleep(level):
        EngineCore.sleep(core, level)

    async def wake_up(tags):
        EngineCore.wake_up(core, tags)

    actor = object.__new__(RolloutRayActor.__ray_metadata__.modified_class)
    actor.llm = SimpleNamespace(sleep=sleep, wake_up=wake_up)
    return actor


@pytest.mark.parametrize(
    "calls",
    [[None], [["weights"], None], [["kv_cache"], None], [["weights"], ["weights"], None], [["kv_cache"], ["weights"]]],
    ids=str,
)
def test_an_engine_that_is_woken_in_parts_decodes_once_it_has_all(core, engine, calls):
    """A weight sync wakes the weights, and the rollouts after it wake both, one after the other."""
    for _ in range(2):  # the second sleep is as the first
        asyncio.run(engine.sleep())
        assert not core.model_executor.awake and not core.scheduled
        for tags in calls:
            asyncio.run(engine.wake_up(tags))
            assert core.scheduled == (core.model_executor.awake == ALL)
        assert core.scheduled

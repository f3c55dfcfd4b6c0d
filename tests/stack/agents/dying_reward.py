"""Reward of the tests of deaths, loaded in an engine's actor: it kills a part of the run, as DIES says, "WHO WHEN".

WHO is the engine's actor, its core or the policy's actor, or an error that is raised instead; WHEN is the creation of the engine, the rendezvous of the weights'
group, or their second sync. The moment goes into the file KILLED, as seconds since the epoch.
"""

import os
import signal
import time
import zlib
from pathlib import Path

import ray
import torch
import vllm
from ray._private.state import actors

WHO, WHEN = os.environ["DIES"].split()
if WHEN == "creation" and ray.is_initialized():  # in the engine; the command has imported this file before, as a check
    raise OSError("libnowhere.so.1: cannot open shared object file")
begin = vllm.AsyncLLMEngine.collective_rpc


def victim(llm) -> int:
    """The id of the process that dies. Its title does not tell: processes of the tests are forks of one."""
    if WHO == "engine":
        return os.getpid()
    if WHO == "core":
        return llm.engine_core.resources.engine_manager.processes[0].pid
    return next(actor["Pid"] for actor in actors().values() if actor["ActorClassName"] == "PolicyModelActor")


async def collective_rpc(self, method, *args, **kwargs):
    moment = {"init_process_group": "rendezvous", "update_weights": "sync"}.get(getattr(method, "__name__", method))
    if moment == WHEN:
        Path(os.environ["KILLED"]).write_text(str(time.time()))
        if WHO == "error":
            raise ConnectionError("the port is taken")
        os.kill(victim(self), signal.SIGKILL)
    return await begin(self, method, *args, **kwargs)


vllm.AsyncLLMEngine.collective_rpc = collective_rpc


def reward_func(queries, prompts, labels, **kwargs):
    return {"rewards": torch.tensor([float(zlib.crc32(query.encode()) % 2) for query in queries])}

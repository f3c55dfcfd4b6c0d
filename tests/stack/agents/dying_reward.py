"""Reward of the tests of deaths, loaded in an engine's actor: it kills a part of the run, as DIES says, "WHO WHEN".

WHO is the engine's actor, its core or the policy's actor; WHEN is the creation of the engine, the rendezvous of the weights'
group, or their second sync. The moment goes into the file KILLED, as seconds since the epoch.
"""

import os
import time
import zlib
from pathlib import Path

import psutil
import torch
import vllm

WHO, WHEN = os.environ["DIES"].split()
if WHEN == "creation":
    raise OSError("libnowhere.so.1: cannot open shared object file")
begin = vllm.AsyncLLMEngine.collective_rpc


def victim() -> psutil.Process:
    """The process that dies; the policy's actor is a child of the same raylet."""
    me = psutil.Process()
    if WHO == "engine":
        return me
    family = me.children(recursive=True) if WHO == "core" else me.parent().children()
    name = {"core": "EngineCore", "policy": "ray::PolicyModelActor"}[WHO]
    return next(process for process in family if name in " ".join(process.cmdline()))


async def collective_rpc(self, method, *args, **kwargs):
    moment = {"init_process_group": "rendezvous", "update_weights": "sync"}.get(getattr(method, "__name__", method))
    if moment == WHEN:
        Path(os.environ["KILLED"]).write_text(str(time.time()))
        victim().kill()
    return await begin(self, method, *args, **kwargs)


vllm.AsyncLLMEngine.collective_rpc = collective_rpc


def reward_func(queries, prompts, labels, **kwargs):
    return {"rewards": torch.tensor([float(zlib.crc32(query.encode()) % 2) for query in queries])}

"""An engine's actor whose engine core dies, or cannot join the weights' group."""

import subprocess
import sys

import pytest
from cpu_stack import ROOT

PROGRAM = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace
from openrlhf_sagc.engine import engine_core

async def collective_rpc(method, *args, **kwargs):
    if method == sys.argv[2]:
        raise ConnectionError("the port is taken")
    return method, args, kwargs

engine_core.PAUSE = engine_core.LAST = 0.05
llm = SimpleNamespace(errored=False, dead_error=RuntimeError("see the stack\\nabove"), collective_rpc=collective_rpc)
engine_core.end_with_the_core(SimpleNamespace(llm=llm))
for method in ("init_process_group", "update_weight"):
    try:
        print(asyncio.run(llm.collective_rpc(method, 1, two=2)), flush=True)
    except ConnectionError:
        print("raised", flush=True)
llm.errored = sys.argv[2] == "dies"
time.sleep(60 if llm.errored else 0.3)
"""
JOINED, UPDATED = "('init_process_group', (1,), {'two': 2})\n", "('update_weight', (1,), {'two': 2})\n"


@pytest.mark.parametrize(
    "fault, said, why",
    [
        (
            "dies",
            JOINED + UPDATED,
            "vLLM's engine core has died: RuntimeError: see the stack above (its lines above say why)",
        ),
        (
            "init_process_group",
            "",
            "this engine could not join the group in which weights are sent: ConnectionError: the port is taken (<string>:9)",
        ),
        ("update_weight", JOINED + "raised\n", ""),
        ("none", JOINED + UPDATED, ""),
    ],
)
def test_the_actor_ends_where_others_would_wait_for_it(fault, said, why):
    command = [sys.executable, "-c", PROGRAM, str(ROOT), fault]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (1 if why else 0, said)
    assert ended.stderr == (f"openrlhf_sagc: {why}; its actor ends\n" if why else "")

"""A Ray that stays, and in it a run whose engine has two GPUs, and which is killed.

    python two_gpu_engine.py MODEL

prints what the engine's processes know, as one line of JSON, and another with what is left of the run.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import ray

MODULE = Path(__file__).with_name("pretended_gpu")
PATIENCE = 60  # seconds until a process counts as left over; it took 3


def run(model: str, address: str) -> None:
    """The run: starts the engine as OpenRLHF does on GPUs, tries it, and is killed."""
    from openrlhf_sagc.run.trees import PATCHED, bring_tree, use_tree

    bring_tree(use_tree(PATCHED), eager=True)
    ray.init(address, runtime_env={"py_modules": [str(MODULE)], "env_vars": {"NCCL_DEBUG": "WARN"}})
    from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
    from pretended_gpu import unchanged
    from vllm import SamplingParams

    group = ray.util.placement_group([{"GPU": 1, "CPU": 1}] * 2, strategy="PACK")  # which actors would share
    ray.get(group.ready())
    settings = {"hf_overrides": unchanged, "num_gpu_blocks_override": 64}
    settings |= {"load_format": "dummy", "skip_tokenizer_init": True}
    (engine,) = create_vllm_engines(
        num_engines=1,
        tensor_parallel_size=2,
        pretrain=model,
        seed=0,
        full_determinism=False,
        enable_prefix_caching=True,
        enforce_eager=True,
        max_model_len=256,
        shared_pg=group,
        gpu_memory_utilization=0.5,
        engine_args=settings,
    )
    job, workers = ray.get(engine.__ray_call__.remote(ask_workers))
    for sleep_or_wake in (engine.sleep.remote(), engine.wake_up.remote(["weights"]), engine.wake_up.remote()):
        ray.get(sleep_or_wake)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
    response = ray.get(engine.generate.remote([1, 2, 3], sampling)).outputs[0].token_ids
    print(json.dumps({"job": job, "workers": workers, "tokens": len(response)}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def ask_workers(actor) -> tuple[str, list[dict]]:
    """Run in the engine's actor: its job in Ray, and what its workers know."""
    asked = actor.llm.collective_rpc(facts)
    loop = actor.llm.output_handler.get_loop()  # Ray calls this in another thread
    return ray.get_runtime_context().get_job_id(), asyncio.run_coroutine_threadsafe(asked, loop).result()


def facts(worker) -> dict:
    import openrlhf

    context = ray.get_runtime_context()
    return {
        "openrlhf": openrlhf.__path__[0],
        "actor": context.get_actor_name(),
        "job": context.get_job_id(),
        "gpus": context.get_accelerator_ids()["GPU"],
        "folder": os.environ["RAY_TMPDIR"],
        "authentication": os.environ["RAY_AUTH_MODE"],
        "NCCL_DEBUG": os.environ["NCCL_DEBUG"],
    }


def processes() -> dict[int, str]:
    """Those of this Ray, with their commands."""
    found = {}
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAY_TMPDIR") == os.environ["RAY_TMPDIR"]:
                found[process.pid] = " ".join(process.cmdline())[-200:]
        except psutil.Error:  # it has ended meanwhile
            continue
    return found


def main(model: str) -> None:
    address = ray.init(include_dashboard=False).address_info["gcs_address"]
    gpus = ray.available_resources()["GPU"]
    before = processes()
    subprocess.run([sys.executable, __file__, model, address])
    deadline = time.monotonic() + PATIENCE
    while True:
        left = [command for number, command in processes().items() if number not in before]
        taken = gpus - ray.available_resources().get("GPU", 0)
        if not left and not taken or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    print(json.dumps({"left": left, "GPUs taken": taken}))


if __name__ == "__main__":
    run(*sys.argv[1:]) if sys.argv[2:] else main(*sys.argv[1:])

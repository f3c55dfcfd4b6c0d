"""An engine of two GPUs as on a GPU node: vLLM's RayExecutorV2, whose core is a driver in Ray, with an actor a worker.

Ray pretends the GPUs, and vLLM's workers for CPUs run there. Other tests do not meet this executor, since vLLM's own
processes take its place on CPUs.
"""

import json
from pathlib import Path

import pytest
from cpu_stack import ROOT
from real_runs import why_it_ended
from transformers import Qwen3Config

pytestmark = pytest.mark.stack
UNSET = (
    "DS_ACCELERATOR",  # or the tree would be that for CPUs
    "RAY_process_group_cleanup_enabled",  # what a GPU node does not set
    "VLLM_ENABLE_V1_MULTIPROCESSING",
)


def test_its_workers_have_the_runs_openrlhf_and_end_with_a_run_that_is_killed(run_script, python, tmp_path):
    sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, head_dim=32)
    sizes |= dict(num_key_value_heads=2, max_position_embeddings=256, vocab_size=128)
    Qwen3Config(**sizes, architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path)
    environment = [*(f"--unset={name}" for name in UNSET), "VLLM_CPU_OMP_THREADS_BIND=nobind", f"PYTHONPATH={ROOT}"]
    start = ["bash", ROOT / "train_scripts/on_cpu.sh", "patched", "env", *environment, python]
    code, output = run_script([*start, ROOT / "tests/stack/two_gpu_engine.py", tmp_path])
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert code == 0 and len(lines) == 2, why_it_ended(output)
    run, after = lines
    assert run["tokens"] == 4 and len(run["workers"]) == 2
    for number, worker in enumerate(run["workers"]):
        assert worker["openrlhf"] == str(ROOT / "build/patched/openrlhf")
        assert worker["actor"].startswith("vllm_Worker_") and worker["actor"].endswith(f"_TP{number}")
        assert worker["job"] != run["job"]  # the core has joined Ray by itself
        assert worker["gpus"] == [str(number)] and worker["NCCL_DEBUG"] == "WARN"
        assert worker["authentication"] == "token" and Path(worker["folder"]).name.startswith("ray.")
    assert after == {"left": [], "GPUs taken": 0}

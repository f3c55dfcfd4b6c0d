"""The runtime environment of a submitted job, beside that which OpenRLHF starts Ray with."""

import json
import subprocess
import sys

import pytest
from cpu_stack import ROOT

pytestmark = pytest.mark.stack

SCRIPT = """
import functools, json, os

import ray
from openrlhf_sagc.run.trees import PATCHED, bring_tree, use_tree

tree = use_tree(PATCHED)
from openrlhf.cli import train_ppo_ray

class Started(Exception):
    pass

def stop(args):
    raise Started

@ray.remote
def settings():
    import openrlhf
    names = "NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "OF_THE_JOB", "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"
    return [os.environ.get(name) for name in names], openrlhf.__file__

train_ppo_ray.get_strategy = stop  # what OpenRLHF does next
try:
    train_ppo_ray.train(None)
except ValueError as error:
    print(json.dumps(str(error)))
ray.init = functools.partial(ray.init, include_dashboard=False)
bring_tree(tree, eager=True)
try:
    train_ppo_ray.train(None)
except Started:
    print(json.dumps(ray.get(settings.remote())))
"""


def test_workers_have_the_jobs_variables_and_openrlhfs_others():
    """Ray refuses variables that both give, also equal ones; the job's count. The command has the job's variables, as Ray gives them."""
    job = {"NCCL_DEBUG": "INFO", "OF_THE_JOB": "1", "TOKENIZERS_PARALLELISM": "false"}
    ray_gives = {"runtime_env": {"env_vars": job, "config": {"setup_timeout_seconds": 300}}, "metadata": {}}
    given = ["env", f"PYTHONPATH={ROOT}", "NCCL_DEBUG=INFO", f"RAY_JOB_CONFIG_JSON_ENV_VAR={json.dumps(ray_gives)}"]
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-patched", *given, sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    refused, (variables, module) = map(json.loads, done.stdout.splitlines()[-2:])
    assert refused.startswith("Failed to merge the Job's runtime env")
    assert variables == ["INFO", "false", "1", "1"]
    assert module == str(ROOT / "build/cpu-patched/openrlhf/__init__.py")

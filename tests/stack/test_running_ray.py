"""A command on CPUs that joins a Ray which was started without its settings."""

import json
import subprocess
import sys

import pytest
from cpu_stack import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]
SCRIPT = """
import json, os, subprocess, sys

import ray

@ray.remote
def settings():
    import torch
    return os.environ.get("DS_ACCELERATOR"), torch.compile(eager) is eager

def eager():
    pass

if sys.argv[1:]:
    from openrlhf_sagc.run.trees import RELEASED, bring_tree, use_tree
    bring_tree(use_tree(RELEASED), eager=True)
    ray.init(sys.argv[1])
    print(json.dumps(ray.get(settings.remote())))
else:
    address = ray.init(include_dashboard=False).address_info["gcs_address"]
    print(json.dumps(ray.get(settings.remote())), flush=True)
    command = {**os.environ, "DS_ACCELERATOR": "cpu"}
    sys.exit(subprocess.call([*sys.orig_argv, address], env=command))
"""


def test_its_workers_train_on_cpus_and_compile_nothing():
    unset = ["env", "--unset=DS_ACCELERATOR", "--unset=TORCHDYNAMO_DISABLE", f"PYTHONPATH={ROOT}"]
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base", *unset, sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    before, joined = map(json.loads, done.stdout.splitlines()[-2:])
    assert before == [None, False] and joined == ["cpu", True]

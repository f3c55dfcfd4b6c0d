"""eval/on_gpu.py in its dry run, as a machine would start it that has PyTorch and Triton alone."""

import os
import subprocess
import sys

import pytest
import torch
from cpu_stack import ROOT


def test_the_dry_run_passes_without_openrlhf_and_writes_no_figures(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, ROOT / "eval/on_gpu.py", "--dry-run", "--results", tmp_path]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    assert "1 passed" in run.stdout and "GPU: not measured" in run.stdout and "in buckets, on a CPU" in run.stdout
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so():
    run = subprocess.run([sys.executable, ROOT / "eval/on_gpu.py"], capture_output=True, text=True)
    assert run.returncode == 1 and "PyTorch sees no GPU here: --dry-run" in run.stderr


def test_a_gradient_that_differs_is_found(device, monkeypatch):
    from benchmarks import buckets

    train = buckets.PolicyStep.train
    monkeypatch.setattr(buckets.PolicyStep, "train", lambda *inputs: train(*inputs) + 1)  # a token that is not there
    table = buckets.measure(device, buckets.CPU, repeats=1).set_index("buckets")
    assert (table.difference[[2, 4]] > buckets.TOLERANCE).all() and table.difference[1] == 0

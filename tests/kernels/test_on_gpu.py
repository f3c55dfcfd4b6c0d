"""eval/on_gpu.py in its dry run, as a machine would start it that has PyTorch and Triton alone."""

import os
import subprocess
import sys

import on_gpu
import pandas as pd
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
    from lib.benchmarks import buckets

    train = buckets.PolicyStep.train
    monkeypatch.setattr(buckets.PolicyStep, "train", lambda *inputs: train(*inputs) + 1)  # a token that is not there
    table = buckets.measure(device, buckets.CPU, repeats=1).set_index("buckets")
    assert (table.difference[[2, 4]] > buckets.TOLERANCE).all() and table.difference[1] == 0


@pytest.mark.parametrize("difference", [0.0, 1.0, float("nan")])
def test_a_step_whose_gradient_differs_leaves_no_table(difference, monkeypatch, tmp_path):
    from lib.benchmarks import buckets, gpu

    table = pd.DataFrame({"buckets": [1, 2], "difference": [0.0, difference], "seconds": [1.0, 1.0]})
    monkeypatch.setattr(on_gpu, "run_tests", lambda dry_run: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    monkeypatch.setattr(buckets, "measure", lambda device, shape, repeats: table)
    timed = []
    monkeypatch.setattr(gpu, "run", lambda results, show: timed.append(results))
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--results", str(tmp_path)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    if difference == 0:
        on_gpu.main()
    else:
        with pytest.raises(SystemExit, match="differs by more than 1e-05: its table is not written"):
            on_gpu.main()
    assert (tmp_path / "buckets/A-GPU.csv").exists() == (difference == 0)
    assert timed == [tmp_path / "group_advantage"]  # which has a check of its own

"""eval/on_gpu.py where there is PyTorch and Triton alone, and its parts besides the ten checks."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from cpu_stack import ROOT
from lib.gpu_checks import kernel
from lib.gpu_checks.outcomes import FAIL, PASS, Node, NotHere


def on_gpu(folder, *words):
    """The command, as a machine would start it on which nothing is set up; its report."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, ROOT / "eval/on_gpu.py", "--output", folder, *words]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    return run, json.loads((folder / "report.json").read_text())


def test_the_kernels_parts_run_without_openrlhf_and_write_no_figures(tmp_path):
    before = subprocess.run(["git", "status", "--short", "eval"], cwd=ROOT, capture_output=True, text=True).stdout
    run, report = on_gpu(tmp_path, "--dry-run", "--checks", "packed_step", "bucket_step", "kernel_times")
    assert run.returncode == 0, run.stdout + "".join(log.read_text() for log in tmp_path.glob("*.log"))
    checks = {check["check"]: check for check in report["checks"]}
    assert list(checks) == ["driver", "kernel_tests", "packed_step", "bucket_step", "kernel_times"]
    passed = {name for name, check in checks.items() if check["status"] == "pass"}
    assert passed == {"kernel_tests", "packed_step", "bucket_step"} and report["dry_run"]
    assert (
        checks["kernel_tests"]["number"] == 1 and checks["kernel_times"]["reason"] == "there is no GPU: not measured"
    )
    after = subprocess.run(["git", "status", "--short", "eval"], cwd=ROOT, capture_output=True, text=True).stdout
    assert before == after


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_skips_what_needs_one(tmp_path):
    run, report = on_gpu(tmp_path)
    assert run.returncode == 1 and "PyTorch sees no GPU here: --dry-run" in run.stdout
    statuses = {check["check"]: check["status"] for check in report["checks"]}
    assert statuses.pop("driver") == "fail" and statuses.pop("compiler") in ("pass", "fail")
    assert set(statuses.values()) == {"skipped"}


@pytest.mark.parametrize("name", ["buckets", "packed"])
def test_a_gradient_that_differs_is_found(device, monkeypatch, name):
    from lib.benchmarks import buckets, packed

    if name == "buckets":
        train = buckets.PolicyStep.train
        monkeypatch.setattr(
            buckets.PolicyStep, "train", lambda *inputs: train(*inputs) + 1
        )  # a token that is not there
        module = buckets
    else:
        right = packed.Policy.log_probs
        monkeypatch.setattr(
            packed.Policy, "log_probs", lambda *inputs: right(*inputs) * (1 + 0.1 * torch.is_grad_enabled())
        )
        module = packed
    table = module.measure(device, module.CPU, repeats=1)
    assert (table.difference[1:] > module.CPU.tolerance).any() and table.difference[0] == 0


def test_packed_samples_see_only_themselves(device):
    from lib.benchmarks import packed

    torch.manual_seed(0)
    policy, (pack, *_) = packed.Policy(packed.CPU).to(device), packed.draw_packs(packed.CPU, device)
    assert len(pack.lengths) > 1
    together = policy.log_probs(pack.tokens_T, pack.lengths).split(pack.lengths)
    for own, tokens_T in zip(together, pack.tokens_T.split(pack.lengths)):
        torch.testing.assert_close(own[:-1], policy.log_probs(tokens_T, [len(tokens_T)])[:-1], rtol=1e-4, atol=1e-5)
    ends = torch.tensor(pack.lengths).cumsum(0) - 1
    assert (pack.advantages_T[ends] == 0).all() and (pack.advantages_T != 0).sum() == len(pack.tokens_T) - len(ends)


@pytest.mark.parametrize("difference", [0.0, 1.0, float("nan")])
@pytest.mark.parametrize("name", ["buckets", "packed"])
def test_a_step_whose_gradient_differs_leaves_no_table(name, difference, monkeypatch, tmp_path):
    from lib.benchmarks import buckets, packed

    table = pd.DataFrame({"way": [1, 2], "difference": [0.0, difference], "seconds": [1.0, 1.0]})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    module = {"buckets": buckets, "packed": packed}[name]
    monkeypatch.setattr(module, "measure", lambda device, shape, repeats: table)
    monkeypatch.setattr(kernel, "RESULTS", tmp_path)
    outcome = getattr(kernel, name)(Node(tmp_path))
    assert outcome.status == (PASS if difference == 0 else FAIL)
    assert (tmp_path / name / "A-GPU.csv").exists() == (difference == 0)


@pytest.mark.parametrize("faster, status", [([1.0, 9.5, 1.0, 2.0], PASS), ([1.0, 0.9, 1.0, 2.0], FAIL)])
def test_a_kernel_that_is_slower_than_torch_fails(faster, status, monkeypatch, tmp_path):
    from lib.benchmarks import gpu

    table = pd.DataFrame({"way": ["kernel", "eager torch"] * 2, "kernel_is_faster_by": faster})
    monkeypatch.setattr(gpu, "run", lambda folder, show: table)
    outcome = kernel.times(Node(tmp_path))
    assert outcome.status == status and outcome.number == min(faster[1], faster[3])
    monkeypatch.setattr(gpu, "run", lambda folder, show: None)
    with pytest.raises(NotHere, match="not measured"):
        kernel.times(Node(tmp_path))


@pytest.mark.parametrize("said, code, status", [("3 passed in 1 s", 0, PASS), ("1 failed, 3 passed", 1, FAIL)])
def test_the_kernels_tests_pass_or_end_what_needs_them(said, code, status, monkeypatch, tmp_path):
    monkeypatch.setattr(kernel.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code, stdout=said))
    assert kernel.tests(Node(tmp_path)).status == status

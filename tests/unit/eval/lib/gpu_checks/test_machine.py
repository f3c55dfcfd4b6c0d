"""Compilers that are missing are named; a driver is asked on GPUs alone."""

import pytest
from lib.gpu_checks import machine
from lib.gpu_checks.outcomes import FAIL, PASS, Node, NotHere


@pytest.mark.parametrize(
    "release, status", [("release 13.0, V13.0.1", PASS), ("release 12.8", FAIL), ("", FAIL), (None, FAIL)]
)
def test_nvcc_has_to_be_of_torchs_cuda(tmp_path, monkeypatch, release, status):
    import torch
    from torch.utils import cpp_extension

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", release is not None and str(tmp_path) or None)
    monkeypatch.setattr(machine.shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text(f"#!/bin/sh\necho '{release}'\n")
    (tmp_path / "bin/nvcc").chmod(0o755)
    outcome = machine.compiler(Node(tmp_path))
    assert outcome.status == status and ("nvcc" in outcome.reason) == (status == FAIL)
    assert machine.compiler(Node(tmp_path, dry_run=True)).status == PASS


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    outcome = machine.compiler(Node(tmp_path, dry_run=True))
    assert outcome.status == FAIL and outcome.number == 2 and outcome.reason == "missing: g++, ninja"


def test_a_dry_run_asks_no_driver(tmp_path):
    with pytest.raises(NotHere):
        machine.driver(Node(tmp_path, dry_run=True))


def test_a_node_on_which_torch_sees_no_gpu_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = machine.driver(Node(tmp_path))
    assert outcome.status == FAIL and "PyTorch sees no GPU here: --dry-run" in outcome.reason

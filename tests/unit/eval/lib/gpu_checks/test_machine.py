"""Compilers that are missing are named; a driver is asked on GPUs alone."""

import pytest
from cpu_stack import ROOT
from lib.gpu_checks import machine
from lib.gpu_checks.outcomes import FAIL, PASS, Node, NotHere


@pytest.mark.parametrize(
    "found, status, said",
    [
        (("nvcc 13.0", [], []), PASS, "nvcc 13.0"),
        (("no nvcc", [], ["torch's AdamW is taken"]), PASS, "torch's AdamW is taken"),  # nvcc is optional
        (("no nvcc", ["no gcc"], ["torch's AdamW is taken"]), FAIL, "no gcc; torch's AdamW is taken"),
    ],
)
def test_the_launch_scripts_own_check_is_asked(tmp_path, monkeypatch, found, status, said):
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    import toolchain

    monkeypatch.setattr(toolchain, "toolchain_of", lambda settings: found)
    outcome = machine.compiler(Node(tmp_path))
    assert (outcome.status, outcome.reason) == (status, said)


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

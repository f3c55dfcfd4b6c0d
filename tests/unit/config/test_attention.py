"""A run on GPUs without flash-attn names its kernel."""

import importlib.util
from types import SimpleNamespace

import pytest

from openrlhf_sagc.config.attention import KERNEL, name_kernel


def args(attention="flash_attention_2", ring=1):
    return SimpleNamespace(ds=SimpleNamespace(attn_implementation=attention, ring_attn_size=ring))


@pytest.fixture
def named(monkeypatch):
    """named(args, installed, device) -> the attention that a run has where flash-attn is installed, or not."""
    find = importlib.util.find_spec

    def run(given, installed=False, device=""):
        spec = object() if installed else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "flash_attn" else find(name))
        monkeypatch.setenv("DS_ACCELERATOR", device)
        name_kernel(given)
        return given.ds.attn_implementation

    return run


def test_the_kernel_takes_the_place_of_flash_attn_and_a_line_says_so(named, capsys):
    assert named(args()) == KERNEL
    said = capsys.readouterr().err
    assert (
        said
        == f"openrlhf_sagc: flash-attn is not installed, so --ds.attn_implementation flash_attention_2 becomes {KERNEL}\n"
    )


@pytest.mark.parametrize("attention", ["sdpa", "kernels-community/flash-attn2@v3", "flash_attention_3"])
def test_what_was_given_stays(named, attention, capsys):
    assert named(args(attention)) == attention and not capsys.readouterr().err


def test_flash_attn_the_cpu_stack_and_rings_keep_the_default(named, capsys):
    kept = [named(args(), installed=True), named(args(), device="cpu"), named(args(ring=2))]
    assert kept == ["flash_attention_2"] * 3 and not capsys.readouterr().err


def test_every_command_asks(monkeypatch):
    """Through OpenRLHF's own checks, as `python -m openrlhf_sagc` and `.off` do."""
    from openrlhf_sagc.config import upstream_checks

    asked = []
    monkeypatch.setattr(upstream_checks, "name_kernel", asked.append)
    monkeypatch.setattr(upstream_checks, "_refuse_unequal_gpus", lambda args: None)
    monkeypatch.setattr(upstream_checks, "check_engine_args", lambda given, corrects: None)
    parsed = SimpleNamespace(**{"vllm.engine_args": None, "data.input_template": None})
    checked = SimpleNamespace(data=SimpleNamespace(input_template=None))
    assert upstream_checks.validated(lambda given: checked, parsed) is checked and asked == [checked]

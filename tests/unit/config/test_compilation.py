"""Nothing is compiled on CPUs, and all that was on GPUs."""

import importlib
import os

import pytest

from openrlhf_sagc.config.compilation import compile_nothing_on_cpus


@pytest.mark.parametrize("accelerator, disabled", [("cpu", "1"), ("cuda", "0"), ("", "0")])
def test_compilation_is_off_on_cpus_alone(monkeypatch, accelerator, disabled):
    monkeypatch.setenv("DS_ACCELERATOR", accelerator)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    compile_nothing_on_cpus()
    assert os.environ["TORCHDYNAMO_DISABLE"] == disabled


@pytest.mark.parametrize("command", ["__main__", "off", "unpatched"])
def test_every_command_sees_to_it_before_anything_else(monkeypatch, command):
    module = importlib.import_module(f"openrlhf_sagc.{command}")
    seen = []

    def read(_):
        seen.append(os.environ["TORCHDYNAMO_DISABLE"])
        raise SystemExit

    monkeypatch.setattr(module, "use_tree", read)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    with pytest.raises(SystemExit):
        module.main()
    assert seen == ["1"]

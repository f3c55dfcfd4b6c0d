import importlib.util
from unittest import mock

import pytest


def said(problems):
    return " / ".join(problems)


@pytest.mark.parametrize(
    ("lines", "visible", "line"),
    [
        (["10, 81559"] * 8, None, ""),
        (["10, 81559"] * 4, None, "the run needs 8 GPUs, this node has 4: set ACTOR_GPUS and ENGINES"),
        (["10, 81559"] * 8, "0,1", "this node has 2 in CUDA_VISIBLE_DEVICES=0,1"),
        (["10, 81559"] * 7 + ["40960, 81559"], None, "GPU 7 has 40 of 80 GiB in use"),
        (None, None, "nvidia-smi does not work, and the run needs 8 GPUs"),
        (["[N/A], [N/A]"], None, "8 GPUs: it says '[N/A], [N/A]' instead of each GPU's memory"),
        (["No devices were found"], None, "it says 'No devices were found'"),
    ],
)
def test_gpus(preflight, monkeypatch, tmp_path, lines, visible, line):
    program = tmp_path / "nvidia-smi"
    if lines is not None:
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{text}'\n" for text in lines))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    problems = said(preflight.gpu_problems(8))
    assert line in problems and bool(line) == bool(problems)


@pytest.mark.parametrize(
    ("driver", "torch", "line"),
    [
        ("CUDA Version: 12.8  ", "13.0", "the driver has CUDA 12, torch was built for 13: update the driver, or load"),
        ("CUDA Version: 13.1  ", "13.0", ""),
        ("CUDA Version: 12.4  ", "12.8", ""),  # of one major version
        ("CUDA Version: 12.4  ", None, ""),
        ("CUDA Version: N/A  ", "13.0", ""),
    ],
)
def test_driver_older_than_torchs_cuda_is_named(preflight, monkeypatch, tmp_path, driver, torch, line):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '| Driver Version: 1 {driver}|'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(f"cuda = {torch!r}\n")
    spec = mock.Mock(origin=str(tmp_path / "torch/__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    said = list(preflight.driver_problems())
    assert len(said) == bool(line) and line in "".join(said)
    program.unlink()
    assert not list(preflight.driver_problems())

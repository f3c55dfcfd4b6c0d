import importlib.metadata
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


@pytest.fixture
def attention(preflight, monkeypatch):
    """attention(flags, *modules, kernels=VERSION): what is said where of flash-attn's modules only these are installed."""

    def of(flags, *modules, kernels=None):
        find = importlib.util.find_spec
        flash = ("flash_attn", "flash_attn_interface", "ring_flash_attn")
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: (name in modules or None) if name in flash else find(name)
        )
        version = mock.Mock(
            return_value=kernels, side_effect=None if kernels else importlib.metadata.PackageNotFoundError
        )
        monkeypatch.setattr(importlib.metadata, "version", version)
        return preflight.attention_of(preflight.settings_of(flags.split()))

    return of


FLAG = "--ds.attn_implementation"
FA3 = f"{FLAG} flash_attention_3"
PACKED = "--ds.packing_samples"


@pytest.mark.parametrize(
    ("flags", "modules", "kernels", "runs"),
    [
        ("", ["flash_attn"], None, "flash_attention_2 of the installed flash_attn"),
        ("", ["flash_attn"], "0.16.2", "flash_attention_2 of the installed flash_attn"),
        ("", [], "0.16.2", "kernels-community/flash-attn2, which kernels fetches from the hub once"),
        (FA3, ["flash_attn"], "0.16.0", "kernels-community/vllm-flash-attn3, which kernels fetches from the hub once"),
        (FA3, ["flash_attn_interface"], None, "flash_attention_3 of the installed flash_attn_interface"),
        (f"{FLAG} kernels-community/x", [], "0.16.2", "kernels-community/x, which kernels fetches from the hub once"),
        (f"{FLAG} sdpa", [], None, "sdpa"),
        (f"{FLAG} sdpa {PACKED}", [], None, "sdpa, which costs the square of a whole pack"),
        (f"{FLAG} eager --train.dynamic_batch_enable", [], None, "eager, which costs the square of a whole pack"),
        ("--ds.ring_attn_size 2", ["flash_attn", "ring_flash_attn"], None, "flash_attention_2 in a ring"),
    ],
)
def test_attention_is_named(attention, flags, modules, kernels, runs):
    assert attention(flags, *modules, kernels=kernels) == (runs, "")


@pytest.mark.parametrize(
    ("flags", "kernels", "missing"),
    [
        (
            "",
            None,
            f"{FLAG} flash_attention_2 finds no kernel: pip install 'kernels>=0.16,<0.17', or compile flash-attn",
        ),
        ("", "0.17.2", "finds no kernel"),  # which transformers 5.15 does not take
        (FA3, None, f"{FLAG} flash_attention_3 finds no kernel: pip install 'kernels>=0.16,<0.17', or {FLAG} sdpa"),
        (f"{FLAG} kernels-community/x", None, "kernels-community/x finds no kernel"),
        ("--ds.ring_attn_size 2", "0.16.2", "--ds.ring_attn_size needs flash_attn and ring_flash_attn"),
    ],
)
def test_what_attention_lacks_is_said(attention, flags, kernels, missing):
    assert missing in attention(flags, kernels=kernels)[1]


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

import importlib.metadata
import importlib.util
from unittest import mock

import pytest


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

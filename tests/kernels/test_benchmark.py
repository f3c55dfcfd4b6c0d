"""The benchmark's own arithmetic, and that it reports nothing of a kernel that is wrong."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "eval"))
import group_advantage_gpu as benchmark  # noqa: E402

FLOAT32 = [variant for variant in benchmark.VARIANTS if variant.out == torch.float32]


def test_model_bytes():
    """Two rows of 10 tokens in blocks of 4; the last actions are in the second block and in the third."""
    ends = torch.tensor([5, 10])
    out = 2 * 10 * 4
    assert benchmark.model_bytes(ends, 10, 0, 0, 4, block=4) == out + 2 * 8
    assert benchmark.model_bytes(ends, 10, 1, 0, 4, block=4) == out + (10 - 4) + (10 - 8)
    assert benchmark.model_bytes(ends, 10, 8, 0, 4, block=4) == out + 8 * ((10 - 4) + (10 - 8))
    assert benchmark.model_bytes(ends, 10, 8, 4, 4, block=4) == out + 8 * 20 + 4 * (5 + 10)
    assert benchmark.model_bytes(torch.tensor([0, 4]), 10, 1, 0, 2, block=4) == 40 + 10 + 10
    assert benchmark.model_bytes(ends, 10, 0, 4, 2, block=4) == 40 + 2 * 8 + 4 * 15


@pytest.mark.parametrize("variant", FLOAT32, ids=[variant.name for variant in FLOAT32])
def test_parity_is_green_for_the_kernel_and_red_for_another(device, variant, monkeypatch, capsys):
    inputs, settings, ends = benchmark.draw(128, 20, variant, device)
    assert inputs[1].diff().unique().tolist() == list(benchmark.GROUP_SIZES) and len(ends) == 128
    assert 0 <= benchmark.parity(inputs, settings) <= 1
    right = benchmark.fused_group_advantages

    def wrong(*inputs, **settings):
        advantages, stds = right(*inputs, **settings)
        return advantages + 1e-4, stds

    monkeypatch.setattr(benchmark, "fused_group_advantages", wrong)
    assert benchmark.parity(inputs, settings) > 1
    draw = benchmark.draw
    monkeypatch.setattr(benchmark, "draw", lambda rows, tokens, variant, _: draw(rows, tokens, variant, device))
    assert benchmark.measure(128, 20, variant, rate=1.0) == []
    assert f"parity is red at 128 x 20, {variant.name}" in capsys.readouterr().err

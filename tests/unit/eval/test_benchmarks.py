"""Benchmarks of per-token advantages: nothing is timed whose result is another."""

import pytest
import torch

SMALL = (24, 256, 16)


@pytest.fixture
def gpu():
    """The GPU's half, which imports Triton."""
    from lib.benchmarks import gpu

    return gpu


@pytest.mark.parametrize(
    ("ends", "itemsizes", "expected"),
    [
        # Two rows of 10 tokens in blocks of 4: a mask is read from the block of the last action on.
        ([10, 4], (1, 0, 4), 2 * 10 * 4 + (10 - 8) + 10),
        ([9, 5], (8, 0, 4), 2 * 10 * 4 + 8 * (2 + 6)),
        ([0, 1], (1, 0, 2), 2 * 10 * 2 + 10 + 10),  # a row without an action is read whole
        ([10, 4], (0, 0, 4), 2 * 10 * 4 + 2 * 8),  # lengths
        ([10, 4], (8, 4, 4), 2 * 10 * 4 + 2 * 10 * 8 + 4 * 14),
        ([10, 4], (0, 2, 4), 2 * 10 * 4 + 2 * 8 + 2 * 14),
    ],
)
def test_model_bytes(gpu, ends, itemsizes, expected):
    assert gpu.model_bytes(torch.tensor(ends), 10, *itemsizes, block=4) == expected


@pytest.mark.parametrize("error", [1.5, float("nan")])
def test_no_kernel_is_timed_whose_result_is_another(gpu, error, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "parity", lambda rows, tokens, variant: error if variant.kl else 0.5)
    shown = []
    with pytest.raises(SystemExit, match="parity is red: no speed-up is reported(\n.* int64 mask, KL: .*){6}$"):
        gpu.run(tmp_path, lambda *table: shown.append(table))
    assert not shown and not list(tmp_path.iterdir())


def test_groups_of_the_kernels_inputs(gpu):
    (rewards, offsets, mask), _ = gpu.draw(256, 64, gpu.VARIANTS[0], "cpu")
    sizes = offsets.diff()
    assert [(sizes == size).sum().item() * size for size in gpu.GROUP_SIZES] == 4 * [64]
    ends = (mask * torch.arange(1, 65)).amax(dim=1)
    assert torch.equal(ends, gpu.draw_ends(256, 64))
    assert gpu.draw(16, 64, gpu.VARIANTS[0], "cpu")[0][1].tolist() == [0, 4, 16]

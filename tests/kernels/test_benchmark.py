"""The parity check that the benchmark makes before it times anything, on the kernel itself."""

import pytest
import torch
from lib.benchmarks import gpu as benchmark

# Triton's interpreter has bfloat16 wrong.
VARIANTS = [v for v in benchmark.VARIANTS if v.out == torch.float32 or torch.cuda.is_available()]


@pytest.mark.parametrize("variant", VARIANTS, ids=[variant.name for variant in VARIANTS])
def test_parity_is_green_for_the_kernel_and_red_for_another(device, variant, monkeypatch):
    assert 0 <= benchmark.parity(128, 20, variant, device) <= 1
    right = benchmark.fused_group_advantages

    def wrong(*inputs, **settings):
        advantages, stds = right(*inputs, **settings)
        return advantages + 2e-2, stds

    monkeypatch.setattr(benchmark, "fused_group_advantages", wrong)
    assert benchmark.parity(128, 20, variant, device) > 1

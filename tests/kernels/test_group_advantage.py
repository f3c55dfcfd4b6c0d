"""The kernel against float64 arithmetic written out; it is interpreted where there is no GPU."""

import numpy as np
import pytest
import torch
from lib.benchmarks.reference import reference_group_advantages

from openrlhf_sagc.advantages import ESTIMATORS
from openrlhf_sagc.advantages import kernel as group_advantage
from openrlhf_sagc.advantages.kernel import BLOCK_T, FUSED, fused_group_advantages

gpu_only = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch):
    """An element that the kernel does not write is NaN."""

    class Torch:
        def __getattr__(self, name):
            return getattr(torch, name)

        @staticmethod
        def empty(*shape, **options):
            return torch.full(shape[0] if isinstance(shape[0], tuple) else shape, torch.nan, **options)

    monkeypatch.setattr(group_advantage, "torch", Torch())


def offsets_of(sizes, dtype=torch.int64):
    return torch.tensor([0, *sizes]).cumsum(0).to(dtype)


def draw(rows, tokens, seed=0):
    """Multi-turn masks with holes and padding, the first row without an action, the last one full; KL everywhere."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, tokens + 1, (rows, 1), generator=generator)
    mask = (torch.arange(tokens) < ends) & (torch.rand(rows, tokens, generator=generator) < 0.6)
    mask[-1] = True
    mask[0] = False
    return mask, 0.1 * torch.randn(rows, tokens, generator=generator)


def expected(rewards, sizes, mask, samples, estimator, clip_range=None, kl=None, kl_coef=0.0, shift=0.0, scale=1.0):
    """Tokens' advantages [B, T] and the standard deviations [B] in float64, a group and a row at a time."""
    advantages, stds = [], []
    for group in np.split(rewards.double().numpy(), np.cumsum(sizes)[:-1]):
        n = len(group)
        std = np.sqrt(np.sum((group - np.mean(group)) ** 2) / max(n - 1, 1)) if np.ptp(group) else 0.0
        others = (np.sum(group) - group) / max(n - 1, 1)
        advantage = {
            "group_norm": (group - np.mean(group)) / (std + 1e-9),
            "rloo": group - others,
            "median": group - np.median(group),
        }.get(estimator, group - np.mean(group))
        advantages += list(advantage if np.ptp(group) else np.zeros(n))
        stds += [std] * n
    rows = np.zeros(mask.shape)
    for row, chosen, sample, i in zip(rows, mask.bool().numpy(), samples.tolist(), range(len(mask))):
        advantage = advantages[sample] if clip_range is None else np.clip(advantages[sample], *clip_range)
        for t in np.flatnonzero(chosen):
            row[: t + 1] = advantage
        if kl is not None:
            row -= kl_coef * np.cumsum((kl[i].double().numpy() * chosen)[::-1])[::-1]
    return torch.tensor((rows - shift) * scale), torch.tensor([stds[sample] for sample in samples])


def check(device, rewards, sizes, mask, samples=None, tolerance=1e-6, launch_mask=None, **settings):
    rows = torch.arange(len(rewards)) if samples is None else samples
    tokens, stds = expected(rewards, sizes, mask, rows, **settings)
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in settings.items()}
    inputs = (
        rewards.to(device),
        offsets_of(sizes).to(device),
        (mask if launch_mask is None else launch_mask).to(device),
    )
    samples = None if samples is None else samples.to(device)
    if launch_mask is not None and launch_mask.dim() == 1:
        moved["num_tokens"] = mask.size(1)
    for function in (fused_group_advantages, reference_group_advantages):
        made, made_stds = function(*inputs, samples, **moved)
        assert made.shape == mask.shape and made.dtype == torch.float32
        torch.testing.assert_close(made.cpu().double(), tokens, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(made_stds.cpu().double(), stds.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("estimator", FUSED)
def test_groups_of_1_to_4096(device, estimator):
    sizes = [1, 2, 3, 7, 64, 127, 128, 129, 1000, 4096, 5]
    rewards = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(1))
    firsts = offsets_of(sizes)
    samples = torch.cat([firsts[:-1], firsts[1:] - 1])  # the first and the last of each group
    mask, _ = draw(len(samples), 9)
    check(device, rewards, sizes, mask, samples, estimator=estimator)


@pytest.mark.parametrize("estimator", FUSED)
def test_ties_and_signed_zeros(device, estimator):
    """Whole rollouts of 0 and 1, of few values, around 0; medians that are and are not a reward."""
    values = [0.0, -0.0, 1.0, 1.0, -2.5, -2.5, 0.0, 3.0, -0.0, -1e-30, 1e-30, 7.0]
    rewards = torch.tensor(values + [0, 1, 1, 0] + [-1.0, -2.0, -3.0] + [-0.0, 0.0])
    sizes = [12, 4, 3, 2]
    mask, _ = draw(len(rewards), 5)
    check(device, rewards, sizes, mask, estimator=estimator)


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, BLOCK_T - 1, BLOCK_T, BLOCK_T + 1, 2 * BLOCK_T + 452])
@pytest.mark.parametrize("with_kl", [False, True], ids=["no KL", "KL"])
def test_rows_of_any_length(device, tokens, with_kl):
    sizes = [4, 1, 3]
    rewards = torch.rand(8, generator=torch.Generator().manual_seed(2))
    mask, kl = draw(8, tokens)
    settings = dict(kl=kl, kl_coef=0.3) if with_kl else {}
    check(device, rewards, sizes, mask, tolerance=1e-5 if with_kl else 1e-6, estimator="group_norm", **settings)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.uint8, torch.float32])
@pytest.mark.parametrize("with_kl", [False, True], ids=["no KL", "KL"])
def test_masks_of_any_dtype(device, dtype, with_kl):
    mask, kl = draw(6, 50)
    rewards = torch.rand(6, generator=torch.Generator().manual_seed(3))
    settings = dict(kl=kl, kl_coef=0.3) if with_kl else {}
    check(device, rewards, [2, 4], mask.to(dtype), tolerance=1e-5, estimator="rloo", **settings)


@pytest.mark.parametrize("with_kl", [False, True], ids=["no KL", "KL"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_lengths_instead_of_a_mask(device, with_kl, dtype):
    lengths = torch.tensor([0, 1, 40, BLOCK_T, BLOCK_T + 7, BLOCK_T + 30], dtype=dtype)
    mask = torch.arange(BLOCK_T + 30) < lengths.unsqueeze(1)
    rewards = torch.rand(6, generator=torch.Generator().manual_seed(4))
    settings = dict(kl=draw(*mask.shape)[1], kl_coef=0.02) if with_kl else {}
    check(device, rewards, [2, 4], mask, launch_mask=lengths, tolerance=1e-5, estimator="dr_grpo", **settings)


def strided(tensor):
    """Views of the same values: transposed, every other element of a wider one, from the middle of a larger one."""
    wide = torch.stack([tensor, ~tensor if tensor.dtype == torch.bool else -tensor], dim=-1).flatten(-2)
    large = torch.cat([tensor.flip(0), tensor, tensor])
    return [tensor.t().contiguous().t(), wide[..., ::2], large[len(tensor) : 2 * len(tensor)]]


@pytest.mark.parametrize("view", range(3), ids=["transposed", "every other", "from the middle"])
def test_any_strides(device, view):
    mask, kl = draw(6, 70)
    rewards = torch.rand(6, generator=torch.Generator().manual_seed(5))
    settings = dict(estimator="median", kl=strided(kl.to(device))[view], kl_coef=0.3)
    inputs = [strided(tensor.to(device))[view] for tensor in (rewards, offsets_of([2, 4]), mask, torch.arange(6))]
    made = fused_group_advantages(*inputs, **settings)
    whole = fused_group_advantages(rewards.to(device), inputs[1], mask.to(device), **settings | {"kl": kl.to(device)})
    assert torch.equal(made[0], whole[0]) and torch.equal(made[1], whole[1])


def test_a_mask_that_all_rows_share(device):
    mask = (torch.arange(40) < 30).expand(6, 40)
    check(
        device,
        torch.arange(6.0),
        [2, 4],
        mask,
        estimator="rloo",
        kl=torch.full((1, 1), 0.5).expand(6, 40),
        kl_coef=1.0,
    )


@pytest.mark.parametrize("estimator", FUSED)
def test_rows_are_any_samples_clipped_and_whitened(device, estimator):
    sizes = [4, 9, 1, 6]
    rewards = torch.randn(20, generator=torch.Generator().manual_seed(6))
    samples = torch.tensor([19, 3, 3, 0, 13, 7, 12], dtype=torch.int32)
    mask, kl = draw(7, 33)
    settings = dict(clip_range=(-0.5, 0.8), kl=kl, kl_coef=0.2, shift=0.3, scale=-1.7)
    check(device, rewards, sizes, mask, samples, tolerance=1e-5, estimator=estimator, **settings)


@pytest.mark.parametrize("estimator", FUSED)
def test_constant_groups_are_exactly_zero(device, estimator):
    values = [0.9, 0.7, 0.3, 0.1, 0.1, 1e-30, 1e30, -3.3e38, 16777217.0, 1e-42, 0.0, -1.0 / 3]
    sizes = [8, 3, 7, 5, 4096, 9, 200, 4, 3, 8, 2, 1]
    rewards = torch.cat([torch.full((size,), value) for size, value in zip(sizes, values)])
    samples = offsets_of(sizes)[1:] - 1
    mask = torch.ones(len(sizes), 3)
    inputs = (tensor.to(device) for tensor in (rewards, offsets_of(sizes), mask, samples))
    advantages, stds = fused_group_advantages(*inputs, estimator=estimator)
    assert not advantages.any() and not stds.any()


@pytest.mark.parametrize("estimator", FUSED)
@pytest.mark.parametrize("value", [1.3, -1.3, 250.0, 1e30])
@pytest.mark.parametrize("ulps", [4, 20])
def test_ulps_are_no_signal_and_more_is(device, estimator, value, ulps):
    """As in the closed form: equal rewards that were summed in another order have no advantage."""
    other = torch.tensor(value)
    for _ in range(ulps):
        other = torch.nextafter(other, torch.tensor(torch.inf * value))
    rewards = torch.stack([torch.tensor(value), other] * 70 + [torch.tensor(0.0), torch.tensor(1.0)])
    offsets, samples, mask = offsets_of([140, 2]), torch.tensor([0, 1, 141]), torch.ones(3, 2)
    inputs = [tensor.to(device) for tensor in (rewards, offsets, mask, samples)]
    advantages, stds = fused_group_advantages(*inputs, estimator=estimator)
    reference, reference_stds = reference_group_advantages(*inputs, estimator=estimator)
    torch.testing.assert_close(advantages, reference, rtol=1e-6, atol=0)
    torch.testing.assert_close(stds, reference_stds, rtol=1e-6, atol=0)
    assert bool(advantages[:2].any()) == bool(stds[:2].any()) == (ulps == 20) and advantages[2].any()


@pytest.mark.parametrize("estimator", FUSED)
def test_a_group_alone_gives_the_bits_it_gives_in_a_batch(device, estimator):
    sizes = [3, 200, 1, 8]
    rewards = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(7)).to(device)
    offsets = offsets_of(sizes).to(device)
    samples = torch.tensor([0, 2, 3, 100, 202, 203, 204, 211], device=device)
    mask = draw(8, 20)[0].to(device)
    batch = fused_group_advantages(rewards, offsets, mask, samples, estimator=estimator)
    again = fused_group_advantages(rewards, offsets, mask, samples, estimator=estimator)
    assert torch.equal(batch[0], again[0]) and torch.equal(batch[1], again[1])
    for group, (start, end) in enumerate(zip(offsets[:-1], offsets[1:])):
        rows = (samples >= start) & (samples < end)
        alone = torch.tensor([0, sizes[group]], device=device)
        made = fused_group_advantages(
            rewards[start:end], alone, mask[rows], samples[rows] - start, estimator=estimator
        )
        assert torch.equal(made[0], batch[0][rows]) and torch.equal(made[1], batch[1][rows])


@pytest.mark.parametrize("clip_range", [None, (-0.5, 0.5)], ids=["", "clipped"])
@pytest.mark.parametrize("estimator", FUSED)
def test_nan_stays_in_its_group(device, estimator, clip_range):
    rewards = torch.tensor([1.0, 2.0, torch.nan, 1.0, 1.0, 0.0, 4.0]).to(device)
    mask = torch.ones(7, 4, dtype=torch.bool, device=device)
    settings = dict(estimator=estimator, clip_range=clip_range)
    advantages, _ = fused_group_advantages(rewards, offsets_of([2, 3, 2]).to(device), mask, **settings)
    poisoned = [2] if estimator == "median" else [2, 3, 4]
    assert advantages.isnan().all(dim=1).nonzero().flatten().tolist() == poisoned
    assert advantages.isnan().any(dim=1).sum() == len(poisoned)


def test_the_kernels_estimators_are_in_the_table():
    assert {*FUSED} <= ESTIMATORS.keys()


def test_no_rows_and_no_tokens(device):
    rewards, offsets = torch.rand(3).to(device), offsets_of([3]).to(device)
    nobody = torch.zeros(0, dtype=torch.long, device=device)
    assert fused_group_advantages(rewards, offsets, torch.ones(0, 5, device=device), nobody)[0].shape == (0, 5)
    advantages, stds = fused_group_advantages(rewards, offsets, torch.ones(3, 0, device=device))
    assert advantages.shape == (3, 0) and stds.gt(0).all()


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(estimator="gae"), "estimator must be one of"),
        (dict(rewards=torch.rand(4).double()), r"rewards must be \[N\] float32, got \(4,\) torch.float64"),
        (dict(action_mask=torch.ones(4, dtype=torch.long)), "num_tokens must be given"),
        (dict(action_mask=torch.ones(3, 5)), "each of the 3 rows"),
        (dict(samples=torch.arange(3)), "samples must name one of the 4 samples for each of the 4 rows"),
        (dict(kl=torch.zeros(4, 6)), r"kl must be \(4, 5\) as the advantages, got \(4, 6\)"),
    ],
)
def test_bad_arguments_are_named(changes, words):
    arguments = dict(rewards=torch.rand(4), offsets=offsets_of([4]), action_mask=torch.ones(4, 5)) | changes
    with pytest.raises(ValueError, match=words):
        fused_group_advantages(**arguments)


@gpu_only
def test_bfloat16_is_the_rounded_float32(device):
    mask, kl = (tensor.to(device) for tensor in draw(64, 999))
    rewards, offsets = torch.rand(64, device=device), offsets_of([16] * 4).to(device)
    whole = fused_group_advantages(rewards, offsets, mask, kl=kl, kl_coef=0.1)[0]
    made = fused_group_advantages(rewards, offsets, mask, kl=kl, kl_coef=0.1, dtype=torch.bfloat16)[0]
    assert torch.equal(made, whole.bfloat16())
    rounded = fused_group_advantages(rewards, offsets, mask, kl=kl.bfloat16(), kl_coef=0.1)[0]
    torch.testing.assert_close(
        rounded,
        reference_group_advantages(rewards, offsets, mask, kl=kl.bfloat16(), kl_coef=0.1)[0],
        rtol=1e-5,
        atol=1e-5,
    )


@gpu_only
def test_no_synchronisation_or_memory_and_a_graph_can_hold_it(device, monkeypatch):
    monkeypatch.setattr(group_advantage, "torch", torch)  # torch.full would be a second launch
    mask, rewards, offsets = (
        draw(64, 999)[0].to(device),
        torch.rand(64, device=device),
        offsets_of([16] * 4).to(device),
    )
    made = fused_group_advantages(rewards, offsets, mask)  # compiled here
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = fused_group_advantages(rewards, offsets, mask)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() - before <= 64 * 1008 * 4 + 64 * 4 + 1024  # the allocator's rounding
    assert torch.equal(made[0], again[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fused_group_advantages(rewards, offsets, mask)
    rewards.copy_(torch.rand(64))
    graph.replay()
    assert torch.equal(captured[0], fused_group_advantages(rewards, offsets, mask)[0])


@gpu_only
def test_addresses_past_two_to_the_31(device):
    rows, stride = 5, 2**29 + 3
    storage = torch.zeros(rows * stride, dtype=torch.uint8, device=device)
    mask = storage.as_strided((rows, 100), (stride, 1))
    mask[:, :37] = 1
    rewards, offsets = torch.arange(5.0, device=device), offsets_of([5]).to(device)
    made = fused_group_advantages(rewards, offsets, mask)[0]
    assert torch.equal(made, fused_group_advantages(rewards, offsets, mask.contiguous())[0])

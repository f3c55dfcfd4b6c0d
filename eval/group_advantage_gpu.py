"""The GPU's half of benchmark_group_advantage.py: the kernel against eager torch, torch.compile and OpenRLHF's loop."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from openrlhf_sagc.kernels.group_advantage import BLOCK_T, fused_group_advantages, reference_group_advantages

SHAPES = [(16, 512), (16, 8192), (256, 2048), (1024, 8192), (4096, 8192), (8192, 16384)]
GROUP_SIZES = (4, 8, 16, 32)
LOOP_ELEMENTS = 2**20  # OpenRLHF's loop launches three kernels a token: it is timed up to this size
LOOP_ROWS = 16
KL_COEF = 0.05


@dataclass(frozen=True)
class Variant:
    """A kind of mask ("lengths" for none), what is written, and whether the KL is in the reward."""

    name: str
    mask: torch.dtype | str
    out: torch.dtype = torch.float32
    kl: bool = False


VARIANTS = [
    Variant("bool mask", torch.bool),
    Variant("int64 mask", torch.int64),
    Variant("lengths", "lengths"),
    Variant("bool mask, bf16", torch.bool, torch.bfloat16),
    Variant("int64 mask, KL", torch.int64, kl=True),
]


def model_bytes(ends_B: torch.Tensor, tokens: int, mask_bytes: int, kl_bytes: int, out_bytes: int, block: int) -> int:
    """Bytes that the kernel has to move, rewards aside.

    Without KL a mask is read from its end up to the block that holds the last action, with KL it is read whole, and
    the KL up to the last action.

    Args:
        ends_B: [B] tokens of each row up to its last action.
        tokens: T.
        mask_bytes: of an element of the mask, 0 where lengths are given (8 bytes a row).
        kl_bytes: of an element of the KL, 0 for none.
        out_bytes: of an element of the result.
        block: tokens that are read at a time.
    """
    total = len(ends_B) * tokens * out_bytes + kl_bytes * int(ends_B.sum())
    if not mask_bytes:
        return total + 8 * len(ends_B)
    if kl_bytes:
        return total + len(ends_B) * tokens * mask_bytes
    unread_B = (ends_B - 1).clamp(min=0) // block * block  # before the block of the last action
    return total + mask_bytes * int((tokens - unread_B).sum())


def draw(rows: int, tokens: int, variant: Variant, device: str) -> tuple[tuple[torch.Tensor, ...], dict]:
    """Inputs of the kernel: groups of 4 to 32 in equal numbers of samples, responses that end in the last half."""
    generator = torch.Generator().manual_seed(0)
    sizes = [size for size in GROUP_SIZES for _ in range(rows // len(GROUP_SIZES) // size)]
    sizes += [rows - sum(sizes)] if sum(sizes) < rows else []
    ends = torch.randint(tokens // 2, tokens + 1, (rows,), generator=generator).to(device)
    rewards = torch.rand(rows, generator=generator).round().to(device)
    offsets = torch.tensor([0, *sizes]).cumsum(0).to(device)
    settings = {"num_tokens": tokens, "dtype": variant.out}
    if variant.kl:
        settings |= {"kl": 0.01 * torch.randn(rows, tokens, device=device), "kl_coef": KL_COEF}
    mask = ends
    if variant.mask != "lengths":
        positions = torch.arange(tokens, device=device)
        mask = ((positions >= tokens // 8) & (positions < ends.unsqueeze(1))).to(variant.mask)
    return (rewards, offsets, mask), settings, ends


def bytes_of(variant: Variant, ends_B: torch.Tensor, tokens: int) -> int:
    mask_bytes = 0 if variant.mask == "lengths" else variant.mask.itemsize
    return model_bytes(ends_B, tokens, mask_bytes, 4 * variant.kl, variant.out.itemsize, BLOCK_T)


def copy_rate() -> float:
    """Bytes read and written a second by a copy of 1 GiB on the device."""
    from triton.testing import do_bench

    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**30 / (1e-3 * do_bench(lambda: target.copy_(source), quantiles=[0.5]))


def parity(inputs, settings) -> float:
    """Greatest difference of the kernel from the reference, in units of what the format allows."""
    made, stds = fused_group_advantages(*inputs, **settings)
    expected, expected_stds = reference_group_advantages(*inputs, **settings)
    allowed = 1e-5 if settings["dtype"] == torch.float32 else 2e-2  # bfloat16 has 8 bits
    worst = ((made.float() - expected.float()).abs() / (1 + expected.float().abs())).max() / allowed
    return max(worst.item(), ((stds - expected_stds).abs().max() / 1e-6).item())


def time_loop(rows: int, tokens: int) -> float:
    """Milliseconds of OpenRLHF's path for all rows: one micro-batch, times their number."""
    from benchmark_group_advantage import draw_batch, openrlhf_path
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    path = openrlhf_path(RemoteExperienceMaker.get_cumulative_returns)
    batch = draw_batch(LOOP_ROWS, tokens, torch.Generator().manual_seed(0), "cuda")
    path(batch, KL_COEF)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    path(batch, KL_COEF)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * rows / LOOP_ROWS


def measure(rows: int, tokens: int, variant: Variant, rate: float) -> list[dict]:
    """A row for each way to compute a shape's advantages; an empty list where the kernel is wrong."""
    from triton.testing import do_bench, do_bench_cudagraph

    inputs, settings, ends_B = draw(rows, tokens, variant, "cuda")
    red = parity(inputs, settings)
    if not red <= 1:
        print(f"parity is red at {rows} x {tokens}, {variant.name}: {red:.3g} times the tolerance", file=sys.stderr)
        return []
    ways: dict[str, Callable] = {
        "kernel": lambda: fused_group_advantages(*inputs, **settings),
        "eager torch": lambda: reference_group_advantages(*inputs, **settings),
    }
    compiled = torch.compile(reference_group_advantages, dynamic=False)
    ways["torch.compile"] = lambda: compiled(*inputs, **settings)
    moved = bytes_of(variant, ends_B, tokens)
    found = []
    for way, call in ways.items():
        call()
        median, fast, slow = do_bench(call, quantiles=[0.5, 0.2, 0.8])  # clears the L2 cache before each call
        graph = do_bench_cudagraph(call) if way == "kernel" and rows <= 16 else None
        row = {"rows": rows, "tokens": tokens, "variant": variant.name, "way": way, "ms": median}
        row |= {"ms_20": fast, "ms_80": slow, "ms_in_graph": graph, "gb_s": moved / median / 1e6}
        found.append(row | {"copy_share": moved / (1e-3 * median) / rate, "extrapolated": False})
    if variant.kl and rows * tokens <= LOOP_ELEMENTS:
        row = {
            "rows": rows,
            "tokens": tokens,
            "variant": variant.name,
            "way": "OpenRLHF",
            "ms": time_loop(rows, tokens),
        }
        found.append(row | {"extrapolated": rows > LOOP_ROWS})
    for row in found:
        row["kernel_is_faster_by"] = row["ms"] / found[0]["ms"]
    return found


def run(results: Path, show: Callable[[str, pd.DataFrame], None]) -> None:
    """Measure and write RESULTS/<GPU's name>.csv, or say that there is no GPU and print the model's bytes."""
    if not torch.cuda.is_available():
        table = []
        for rows, tokens in SHAPES:
            ends_B = torch.randint(tokens // 2, tokens + 1, (rows,), generator=torch.Generator().manual_seed(0))
            sizes = {variant.name: bytes_of(variant, ends_B, tokens) for variant in VARIANTS}
            table.append(
                {"rows": rows, "tokens": tokens, **{name: f"{size / 1e6:.3f} MB" for name, size in sizes.items()}}
            )
        show("Bytes that the kernel has to move (GPU: not measured)", pd.DataFrame(table))
        return
    rate = copy_rate()
    measured = {(*shape, variant.name): measure(*shape, variant, rate) for shape in SHAPES for variant in VARIANTS}
    if not all(measured.values()):
        sys.exit("benchmark_group_advantage: parity is red: no speed-up is reported")
    frame = pd.DataFrame([row for rows in measured.values() for row in rows]).assign(copy_gb_s=rate / 1e9)
    name = torch.cuda.get_device_name()
    show(f"{name}: copies {rate / 1e9:.0f} GB/s", frame)
    frame.to_csv(results / f"{name.replace(' ', '-')}.csv", index=False, float_format="%.6g")

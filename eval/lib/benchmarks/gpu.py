"""Per-token advantages on a GPU: the kernel against eager torch, torch.compile and OpenRLHF's loop."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from lib.benchmarks.reference import reference_group_advantages

from openrlhf_sagc.advantages.kernel import BLOCK_T, fused_group_advantages

PROMPT = 256  # tokens, an eighth of a row where rows are short
KL_COEF = 0.05
SHAPES = [(16, 512), (16, 8192), (256, 2048), (1024, 8192), (4096, 8192), (8192, 16384)]
GROUP_SIZES = (4, 8, 16, 32)
LOOP_ELEMENTS = 256 * 2048  # OpenRLHF's loop launches three kernels a token: it is timed up to this size
LOOP_ROWS = 16
HAS_OPENRLHF = importlib.util.find_spec("openrlhf") is not None  # without it the others are timed alone


@dataclass(frozen=True)
class Variant:
    """A kind of mask ("lengths" if there is none), the type of the result, and whether the KL is in the reward."""

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


def model_bytes(
    last_ends_B: torch.Tensor, tokens: int, mask_itemsize: int, kl_itemsize: int, out_itemsize: int, block: int
) -> int:
    """Bytes that the kernel has to move, without the rewards.

    Without KL a mask is read from its end up to the block that holds the last action. With KL it is read whole, and the
    KL up to the last action.

    Args:
        last_ends_B: [B] tokens of each row up to its last action.
        tokens: T.
        mask_itemsize: bytes of an element of the mask, 0 where lengths are given (8 bytes a row).
        kl_itemsize: bytes of an element of the KL, 0 for none.
        out_itemsize: bytes of an element of the result.
        block: tokens that are read at a time.
    """
    total = len(last_ends_B) * tokens * out_itemsize + kl_itemsize * int(last_ends_B.sum())
    if not mask_itemsize:
        return total + 8 * len(last_ends_B)
    if kl_itemsize:
        return total + len(last_ends_B) * tokens * mask_itemsize
    unread_B = (last_ends_B - 1).clamp(min=0) // block * block  # before the block of the last action
    return total + mask_itemsize * int((tokens - unread_B).sum())


def draw_ends(rows: int, tokens: int) -> torch.Tensor:
    """[rows] tokens of each row up to its last action, on the CPU: anywhere in the last half."""
    return torch.randint(tokens // 2, tokens + 1, (rows,), generator=torch.Generator().manual_seed(0))


def draw(rows: int, tokens: int, variant: Variant, device: str) -> tuple[tuple[torch.Tensor, ...], dict]:
    """Inputs of the kernel: groups of 4, 8, 16 and 32 in equal numbers of samples; the samples left over are a group.

    Returns:
        rewards [rows] of 0 and 1, offsets, the mask or the lengths; arguments by keyword.
    """
    generator = torch.Generator(device).manual_seed(0)
    sizes = [size for size in GROUP_SIZES for _ in range(rows // len(GROUP_SIZES) // size)]
    sizes += [rows - sum(sizes)] if sum(sizes) < rows else []
    rewards = torch.rand(rows, generator=generator, device=device).round()
    offsets = torch.tensor([0, *sizes]).cumsum(0).to(device)
    settings = {"num_tokens": tokens, "dtype": variant.out}
    if variant.kl:
        settings |= {"kl": 0.01 * torch.randn(rows, tokens, generator=generator, device=device), "kl_coef": KL_COEF}
    mask = draw_ends(rows, tokens).to(device)
    if variant.mask != "lengths":
        positions = torch.arange(tokens, device=device)
        mask = ((positions >= min(PROMPT, tokens // 8)) & (positions < mask.unsqueeze(1))).to(variant.mask)
    return (rewards, offsets, mask), settings


def bytes_of(rows: int, tokens: int, variant: Variant) -> int:
    """`model_bytes` of the inputs that `draw` gives."""
    mask_itemsize = 0 if variant.mask == "lengths" else variant.mask.itemsize
    return model_bytes(draw_ends(rows, tokens), tokens, mask_itemsize, 4 * variant.kl, variant.out.itemsize, BLOCK_T)


def copy_rate() -> float:
    """Bytes read and written a second by a copy of 1 GiB on the device."""
    from triton.testing import do_bench

    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**30 / (1e-3 * do_bench(lambda: target.copy_(source), quantiles=[0.5]))


def parity(rows: int, tokens: int, variant: Variant, device: str = "cuda") -> float:
    """Greatest difference of the kernel from the reference, over what is allowed; NaN if either has one."""
    inputs, settings = draw(rows, tokens, variant, device)
    made, stds = fused_group_advantages(*inputs, **settings)
    expected, expected_stds = reference_group_advantages(*inputs, **settings)
    allowed = max(1e-5, torch.finfo(variant.out).eps)  # bfloat16: a unit in the last place
    worst = ((made.float() - expected.float()).abs() / (1 + expected.float().abs())).max() / allowed
    return torch.maximum(worst, (stds - expected_stds).abs().max() / 1e-6).item()


def loop_batch(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Inputs of OpenRLHF's loop: responses that end anywhere in the last half of the tokens; masks as OpenRLHF has them.

    Returns:
        advantages [rows] float32; mask [rows, tokens] int64; kl [rows, tokens] float32.
    """
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(tokens // 2, tokens + 1, (rows, 1), generator=generator)
    positions = torch.arange(tokens)
    mask = ((positions >= min(PROMPT, tokens // 8)) & (positions < ends)).long()
    kl = 0.01 * torch.randn(rows, tokens, generator=generator) * mask
    batch = {"advantages": torch.randn(rows, generator=generator), "mask": mask, "kl": kl}
    return {name: tensor.to("cuda") for name, tensor in batch.items()}


def time_loop(rows: int, tokens: int, kl_coef: float) -> float:
    """Milliseconds of OpenRLHF's path for all rows, from samples' advantages on: one micro-batch times their number."""
    from openrlhf.models.utils import compute_reward
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    batch = loop_batch(LOOP_ROWS, tokens)

    def path() -> None:  # to the advantages of tokens, which are the returns and a copy of them
        reward = compute_reward(batch["advantages"], kl_coef, batch["kl"], action_mask=batch["mask"])
        RemoteExperienceMaker.get_cumulative_returns(None, reward, batch["mask"], 1.0).clone()

    path()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    path()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * rows / LOOP_ROWS


def measure(rows: int, tokens: int, variant: Variant, rate: float) -> list[dict]:
    """A row for each way to compute a shape's advantages; GB/s and shares are of the bytes of `model_bytes`."""
    from triton.testing import do_bench, do_bench_cudagraph

    inputs, settings = draw(rows, tokens, variant, "cuda")
    torch.compiler.reset()  # beyond eight variants of a function torch.compile would run it eagerly
    compiled = torch.compile(reference_group_advantages, dynamic=False)
    ways = {"kernel": fused_group_advantages, "eager torch": reference_group_advantages, "torch.compile": compiled}
    shape = {"rows": rows, "tokens": tokens, "variant": variant.name}
    moved = bytes_of(rows, tokens, variant)
    found = []
    for way, function in ways.items():

        def call(function=function):
            return function(*inputs, **settings)

        call()
        median, fast, slow = do_bench(call, quantiles=[0.5, 0.2, 0.8])  # clears the L2 cache before each call
        # A launch outlasts the kernel on few rows; only the kernel is made for a graph.
        graph = do_bench_cudagraph(call, quantiles=[0.5]) if way == "kernel" and rows <= 16 else None
        row = {**shape, "way": way, "ms": median, "ms_20": fast, "ms_80": slow, "ms_graph_warm_l2": graph}
        row |= {"gb_s": moved / median / 1e6, "copy_share": moved / (1e-3 * median) / rate, "extrapolated": False}
        found.append(row)
    if HAS_OPENRLHF and variant.mask == torch.int64 and rows * tokens <= LOOP_ELEMENTS:
        loop_ms = time_loop(rows, tokens, KL_COEF * variant.kl)
        found.append({**shape, "way": "OpenRLHF", "ms": loop_ms, "extrapolated": rows > LOOP_ROWS})
    return [{**row, "kernel_is_faster_by": row["ms"] / found[0]["ms"]} for row in found]


def run(results: Path, show: Callable[[str, pd.DataFrame], None]) -> pd.DataFrame | None:
    """Measure and write FOLDER/<GPU's name>.csv, or say that there is no GPU, print the model's bytes and return None."""
    if not torch.cuda.is_available():
        rows = [
            {"rows": shape[0], "tokens": shape[1]}
            | {variant.name: f"{bytes_of(*shape, variant) / 1e6:.3f} MB" for variant in VARIANTS}
            for shape in SHAPES
        ]
        show("Bytes that the kernel has to move (GPU: not measured)", pd.DataFrame(rows))
        return None
    cases = [(*shape, variant) for shape in SHAPES for variant in VARIANTS]
    errors = {f"{rows} x {tokens}, {variant.name}": parity(rows, tokens, variant) for rows, tokens, variant in cases}
    red = [f"{case}: {error:.3g} times the tolerance" for case, error in errors.items() if not error <= 1]
    if red:
        sys.exit("\n".join(["group_advantage: parity is red: no speed-up is reported", *red]))
    rate = copy_rate()
    frame = pd.DataFrame([row for case in cases for row in measure(*case, rate)]).assign(copy_gb_s=rate / 1e9)
    name = torch.cuda.get_device_name()
    results.mkdir(parents=True, exist_ok=True)
    show(f"{name}: copies {rate / 1e9:.0f} GB/s", frame.drop(columns="copy_gb_s"))
    frame.to_csv(results / f"{name.replace(' ', '-')}.csv", index=False, float_format="%.6g")
    return frame

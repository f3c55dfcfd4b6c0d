"""Compiles the kernel without a GPU, for the targets of its arguments; prints what each needs as JSON."""

import itertools
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from openrlhf_sagc.advantages.kernel import BLOCK_G, BLOCK_T, EPS, NOISE, _group_advantage_kernel, compile_options

POINTERS = dict(rewards_ptr="*fp32", offsets_ptr="*i64", samples_ptr="*i64", stds_ptr="*fp32")
STRIDES = [
    "rewards_stride",
    "offsets_stride",
    "samples_stride",
    "mask_stride_b",
    "mask_stride_t",
    "kl_stride_b",
    "kl_stride_t",
    "advantages_stride_b",
]
SCALARS = dict(num_tokens="i32", num_groups="i32", clip_low="fp32", clip_high="fp32", kl_coef="fp32")


def variants(capability):
    """Every code path with aligned rows; some with rows that start anywhere, far apart, unclipped, row i sample i.

    All of them for sm_90; for other targets those with a KL penalty, which are the others and a load more.
    """
    estimators, kl = ["group_norm", "dr_grpo", "rloo", "median"], [None, "*fp32"] if capability == 90 else ["*fp32"]
    yield from itertools.product(estimators, ["*i64", "lengths"], kl, ["*fp32"], [True])
    yield from itertools.product(["group_norm", "median"], ["*i1"], kl, ["*fp32", "*bf16"], [True])
    yield from itertools.product(["group_norm", "median"], ["*i64"], ["*fp32", "*bf16"], ["*fp32"], [False])


def compile_variant(capability, estimator, mask, kl, out, aligned):
    types = POINTERS | dict.fromkeys(STRIDES, "i32" if aligned else "i64") | SCALARS | dict(shift="fp32", scale="fp32")
    types |= dict(mask_ptr="*i64" if mask == "lengths" else mask, kl_ptr=kl, advantages_ptr=out)
    constants = dict(
        ESTIMATOR=estimator,
        CLIP=aligned,
        LENGTHS=mask == "lengths",
        EPS=EPS,
        NOISE=NOISE,
        BLOCK_G=BLOCK_G,
        BLOCK_T=BLOCK_T,
    )
    if not aligned:
        constants["samples_ptr"] = None
    if kl is None:
        constants["kl_ptr"] = None
    if aligned:
        constants |= dict(rewards_stride=1, offsets_stride=1, samples_stride=1, mask_stride_t=1, kl_stride_t=1)
    types |= dict.fromkeys(constants, "constexpr")
    names = _group_advantage_kernel.arg_names
    multiples_of_16 = {"advantages_ptr", "stds_ptr", "advantages_stride_b"}
    if aligned:
        multiples_of_16 |= {name for name in names if name.endswith(("_ptr", "_stride_b"))}
    source = ASTSource(
        fn=_group_advantage_kernel,
        signature={name: types[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in multiples_of_16 - constants.keys()},
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options=compile_options(estimator)).asm["cubin"]


def resources(cubin: bytes) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        dump = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", "-sass", file]
        text = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    usage = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return usage | {"spills": len(re.findall(r"\b(?:LDL|STL)\b", text)), "stores": re.findall(r"STG\.E\S*", text)}


def needs(variant: tuple) -> dict:
    return {"variant": variant, **resources(compile_variant(*variant))}


if __name__ == "__main__":
    wanted = [(capability, *variant) for capability in map(int, sys.argv[1:]) for variant in variants(capability)]
    with multiprocessing.Pool() as pool:
        print(json.dumps(pool.map(needs, wanted, chunksize=1)))

"""Which nvcc DeepSpeed's Adam needs at its first start, by the pinned DeepSpeed and torch; torch has CUDA 13.0 here.

GPU runs train with FusedAdam, and with --ds.adam_offload with CPUAdam.
"""

import pytest

LOAD = """
import sys

import torch
from deepspeed.ops.op_builder.cpu_adam import CPUAdamBuilder
from deepspeed.ops.op_builder.fused_adam import FusedAdamBuilder
from torch.utils import cpp_extension

torch.version.cuda = "13.0"
torch.cuda.is_available = torch.cuda.is_initialized = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda device=None: (9, 0)
cpp_extension.CUDA_HOME = sys.argv[1] or None
if cpp_extension.CUDA_HOME:
    cpp_extension.load = lambda name, sources, **_: f"compiles {len(sources)} files"
for builder in (FusedAdamBuilder(), CPUAdamBuilder()):
    try:
        print("ENDS", builder.load(verbose=False))
    except Exception as error:
        print("ENDS", type(error).__name__, str(error).replace("\\n", " "))
"""


@pytest.fixture
def load(run_in_tree, tmp_path):
    """load(CUDA of nvcc, or None) -> how loading FusedAdam and CPUAdam ends, in a process of their own."""

    def ends(nvcc: str | None) -> list[str]:
        if nvcc:
            program = tmp_path / "bin/nvcc"
            program.parent.mkdir()
            program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {nvcc}, V{nvcc}.80'\n")
            program.chmod(0o755)
        home = str(tmp_path) if nvcc else ""
        output = run_in_tree("patched", "-c", LOAD, home, env={"TORCH_EXTENSIONS_DIR": str(tmp_path)})
        return [line.removeprefix("ENDS ") for line in output.splitlines() if line.startswith("ENDS ")]

    return ends


def test_without_nvcc_neither_is_compiled(load):
    fused, on_cpu = load(None)
    assert fused.startswith("OSError CUDA_HOME environment variable is not set")
    assert on_cpu.startswith("MissingCUDAException CUDA_HOME does not exist")


@pytest.mark.parametrize("nvcc", ["13.0", "13.1", "12.9"])
def test_nvcc_of_another_cuda_than_torchs_compiles_fused_adam_only(load, nvcc):
    """DeepSpeed compares versions for CPUAdam alone. Its table of those that go together ends at CUDA 12."""
    fused, on_cpu = load(nvcc)
    assert fused == "compiles 2 files"
    mismatch = f"CUDAMismatchException >- DeepSpeed Op Builder: Installed CUDA version {nvcc} does not match"
    assert on_cpu.startswith("compiles 2 files" if nvcc == "13.0" else mismatch)

"""A GPU node that is none: stubs of its programs, and a Python that says it has CUDA."""

import pytest
from cpu_stack import ROOT
from nvidia_smi import HEADER, write_nvidia_smi

NODE = ROOT / "tests/helpers/gpu_node"
NVCC = 'echo "Cuda compilation tools, release 13.0, V13.0.88"'
PROGRAMS = {"nvidia-smi": "", "nvcc": NVCC, "gcc": "", "g++": "", "ninja": ""}


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """node(without=(), driver="13.0", **variables): the environment of a process on it, where a program may be missing."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "lib64").mkdir()
    (folder / "lib64/libcudart.so").touch()  # beside nvcc, as in a toolkit
    for name, text in PROGRAMS.items():
        (folder / name).mkdir()
        (folder / name / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name / name).chmod(0o755)

    def environment(without=(), driver="13.0", **variables):
        header = HEADER.replace("CUDA Version: 13.0", f"CUDA Version: {driver}")
        write_nvidia_smi(folder / "nvidia-smi", *[(4, 81559)] * 8, header=header)
        programs = [str(folder / name) for name in PROGRAMS if name not in without]
        given = {"PATH": ":".join([*programs, "/usr/bin", "/bin"]), "HOME": str(folder)}
        given |= {"PYTHONPATH": f"{NODE}:{ROOT / 'build/patched'}", "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
        return given | {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"} | variables

    return environment

"""A GPU node that is none: stubs of its programs, and a Python that says it has CUDA."""

import pytest
from cpu_stack import ROOT

NODE = ROOT / "tests/helpers/gpu_node"
EIGHT = "\n".join(["4, 81559"] * 8)
PROGRAMS = {
    "nvidia-smi": 'case "$*" in *query-gpu*) printf "%s\\n" "$SMI_ROWS" ;; *) echo "| CUDA Version: ${DRIVER:-13.0} |" ;; esac',
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    "gcc": "",
    "g++": "",
    "ninja": "",
}


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """node(without=(), **variables): the environment of a process on it, where a program may be missing."""
    folder = tmp_path_factory.mktemp("node")
    for name, text in PROGRAMS.items():
        (folder / name).mkdir()
        (folder / name / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name / name).chmod(0o755)

    def environment(without=(), **variables):
        programs = [str(folder / name) for name in PROGRAMS if name not in without]
        given = {"PATH": ":".join([*programs, "/usr/bin", "/bin"]), "HOME": str(folder), "SMI_ROWS": EIGHT}
        given |= {"PYTHONPATH": f"{NODE}:{ROOT / 'build/patched'}", "TORCH_EXTENSIONS_DIR": str(folder / "extensions")}
        return given | {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"} | variables

    return environment

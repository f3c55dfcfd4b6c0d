"""The compilers of this node: toolchain.py says what the training can compile here; preflight.py asks before Ray starts.

Triton and vLLM compile with a C compiler and Python.h. DeepSpeed compiles its fused Adam at the first start, with nvcc, g++ and
ninja; without them the patched OpenRLHF takes torch's fused AdamW, whose weights are the same.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gpus import torch_cuda  # noqa: E402

OFFLOAD = "--ds.adam_offload"
INSTEAD = "torch's fused AdamW takes the place of DeepSpeed's, with the same weights"
SYSTEM = "/usr/lib/x86_64-linux-gnu"  # where the linker looks besides
USUAL_NVCC = "/usr/local/cuda/bin/nvcc"
LEFT_MINUTES = 10  # DeepSpeed's fused Adam compiles in one or two


def toolchain_of(settings: dict[str, list[str]], released: bool = False) -> tuple[str, list[str], list[str]]:
    """The compilers in a few words, what a run with these settings cannot do without, and what it does in another way.

    Args:
        settings: the training's flags with their values.
        released: whether OpenRLHF as released runs, which has no AdamW of torch to take.
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    problems = _torch_problems()
    if compiler := os.environ.get("CC"):  # Triton takes nothing else
        if not shutil.which(compiler):
            problems.append(f"CC={compiler} is no program, with which Triton and vLLM compile at the start: unset CC")
    elif not any(map(shutil.which, ["gcc", "clang"])):
        problems.append("no C compiler, with which Triton and vLLM compile at the start: apt-get install gcc g++")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        problems.append(
            f"no Python.h of {python}, with which Triton compiles at the start: apt-get install {python}-dev, or "
            "a Python that brings it (uv, conda)"
        )
    lacking = [_nvcc_missing()]
    lacking += ["" if shutil.which("ninja") else "no ninja in PATH", "" if _cxx() else "no g++"]
    lacking = [line for line in lacking if line] or [line for line in [_mismatch(OFFLOAD in settings)] if line]
    notes = []
    if lacking and OFFLOAD in settings:
        problems.append(f"{OFFLOAD} compiles DeepSpeed's Adam ({', '.join(lacking)}): drop {OFFLOAD}, or {_remedy()}")
    elif lacking and released:
        problems.append(
            f"OpenRLHF as released compiles DeepSpeed's Adam ({', '.join(lacking)}): SAGC=off, or {_remedy()}"
        )
    elif lacking:
        notes.append(f"{', '.join(lacking)}: {INSTEAD}")
    problems += _left_locks()  # torch waits for one before it looks for nvcc
    return _nvcc_words(), problems, notes


def _torch_problems() -> list[str]:
    """A torch for CPUs, which pip takes where its settings name a folder or an index of their own."""
    with suppress(PackageNotFoundError):
        if not torch_cuda():
            release = (found := version("torch")).split("+")[0]
            again = f"pip --isolated install --force-reinstall torch=={release}"
            return [f"the installed torch {found} is built without CUDA: {again}"]
    return []


def _remedy() -> str:
    """What makes nvcc usable."""
    return f"install the CUDA toolkit {torch_cuda() or '13.0'} with g++ and ninja, and set CUDA_HOME to it"


def nvcc() -> str:
    """The path of the nvcc that torch would compile with; empty if it finds none. It looks in this order."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or USUAL_NVCC
    return found if os.access(found, os.X_OK) else ""


def _nvcc_missing() -> str:
    """Why there is nothing to compile with; empty if there is. torch links with the libraries beside nvcc, links not resolved."""
    named = next((name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)), "")
    if not (path := nvcc()):
        return f"no nvcc of CUDA {torch_cuda() or '13.0'}" + (f" in {named}={os.environ[named]}" if named else "")
    home = Path(path).parents[1]
    if any((folder / "libcudart.so").exists() for folder in (home / "lib64", home / "lib", Path(SYSTEM))):
        return ""
    return f"no libcudart.so beside {path}, so CUDA_HOME is to be the toolkit's folder"


def _version(program: str) -> str:
    """That of an nvcc, as 13.0; empty if it says none."""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
        if found := re.search(r"release (\d+\.\d+)", said):
            return found[1]
    return ""


def _mismatch(offload: bool) -> str:
    """Why DeepSpeed 0.19.6 cannot compile with this node's nvcc, which is of another CUDA than torch; empty if it can.

    Its Adam on the CPU takes other minor versions of CUDA 11 and 12 alone. The fused one compiles with what there is.
    """
    found, needed = _version(nvcc()), torch_cuda()
    exact = offload and needed.split(".")[0] not in ("11", "12") and os.environ.get("DS_SKIP_CUDA_CHECK") != "1"
    fits = found == needed if exact else found.split(".")[0] == needed.split(".")[0]
    return "" if fits or not needed else f"nvcc is of CUDA {found or '?'}, torch of {needed}"


def _nvcc_words() -> str:
    path = nvcc()
    return f"nvcc {_version(path) or '?'}" if path else "no nvcc"


def _cxx() -> str | None:
    compiler = os.environ.get("CXX")  # then torch takes nothing else
    return shutil.which(compiler) if compiler else shutil.which("g++") or shutil.which("c++")


def _left_locks() -> list[str]:
    """Locks of DeepSpeed's compilation that a killed start has left: every later start waits for them without a word."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(cache, "torch_extensions"))
    found = []
    for lock in [*folder.glob("*/lock"), *folder.glob("*/*/lock")]:
        with suppress(OSError):  # gone meanwhile
            if time.time() - lock.stat().st_mtime > 60 * LEFT_MINUTES:
                found.append(f"{lock} was left by a start that was killed, and each later one waits for it: rm {lock}")
    return found


if __name__ == "__main__":
    words, wrong, noted = toolchain_of({})
    for line in [*wrong, *noted]:
        print(f"train_scripts/toolchain.py: {line}")
    print(f"train_scripts/toolchain.py: {words}; the start compiles with {_cxx() or 'no g++'}")
    sys.exit(2 if wrong else 0)

"""The compilers of a node are stubs in a PATH of their own."""

import os
import sysconfig
import time

import pytest
from cpu_stack import ROOT

FUSED = "torch's fused AdamW takes the place of DeepSpeed's, with the same weights"


@pytest.fixture
def toolchain(monkeypatch, tmp_path):
    """toolchain(*programs, nvcc=RELEASE, torch=CUDA) -> words, problems and notes where only these programs are."""
    monkeypatch.syspath_prepend(str(ROOT / "train_scripts"))
    import toolchain as module

    for name in ("CUDA_HOME", "CUDA_PATH", "CC", "CXX", "DS_SKIP_CUDA_CHECK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    (tmp_path / "include").mkdir()
    (tmp_path / "include/Python.h").touch()
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libcudart.so").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path / "include")})

    def found(*programs, nvcc=None, torch="13.0", settings=(), released=False):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name in [*programs, *(["nvcc"] if nvcc else [])]:
            said = f"Cuda compilation tools, release {nvcc}, V{nvcc}.1" if name == "nvcc" else ""
            (folder / name).write_text(f"#!/bin/sh\necho '{said}'\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(module, "torch_cuda", lambda: torch)
        monkeypatch.setattr(module, "USUAL_NVCC", str(tmp_path / "none"))
        monkeypatch.setattr(module, "SYSTEM", str(tmp_path / "none"))
        return module.toolchain_of(dict.fromkeys(settings, []), released)

    found.folder = tmp_path
    return found


ALL = ("gcc", "g++", "ninja")


@pytest.mark.parametrize(
    ("programs", "nvcc", "torch", "words", "note"),
    [
        (ALL, "13.0", "13.0", "nvcc 13.0", ""),
        (ALL, "12.4", "12.8", "nvcc 12.4", ""),  # DeepSpeed knows these to fit
        (ALL, None, "13.0", "no nvcc", f"no nvcc of CUDA 13.0: {FUSED}"),
        (ALL, "13.1", "13.0", "nvcc 13.1", ""),  # tests/unit/rehearsal/test_compiled_adam.py
        (ALL, "12.8", "13.0", "nvcc 12.8", f"nvcc is of CUDA 12.8, torch of 13.0: {FUSED}"),
        (("gcc", "g++"), "13.0", "13.0", "nvcc 13.0", f"no ninja in PATH: {FUSED}"),
        (("gcc",), None, "13.0", "no nvcc", f"no nvcc of CUDA 13.0, no ninja in PATH, no g++: {FUSED}"),
    ],
)
def test_what_deepspeed_cannot_compile_torch_has(toolchain, programs, nvcc, torch, words, note):
    assert toolchain(*programs, nvcc=nvcc, torch=torch) == (words, [], [note] if note else [])


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_cuda_home_comes_first_as_in_torch(toolchain, monkeypatch, name):
    monkeypatch.setenv(name, "/runtime")  # without a compiler
    assert toolchain(*ALL, nvcc="13.0") == ("no nvcc", [], [f"no nvcc of CUDA 13.0 in {name}=/runtime: {FUSED}"])


@pytest.mark.parametrize(
    ("settings", "released", "line"),
    [
        (
            ["--ds.adam_offload"],
            False,
            "--ds.adam_offload compiles DeepSpeed's Adam (no nvcc of CUDA 13.0): drop --ds.adam_offload, or install the CUDA "
            "toolkit 13.0 with g++ and ninja, and set CUDA_HOME to it",
        ),
        ([], True, "OpenRLHF as released compiles DeepSpeed's Adam (no nvcc of CUDA 13.0): SAGC=off, or install"),
    ],
)
def test_a_run_without_another_adam_is_refused(toolchain, settings, released, line):
    _, (problem,), notes = toolchain(*ALL, settings=settings, released=released)
    assert problem.startswith(line) and not notes
    assert not toolchain(*ALL, nvcc="13.0", settings=settings, released=released)[1]


def test_adam_on_the_cpu_wants_torchs_own_cuda(toolchain, monkeypatch):
    (problem,) = toolchain(*ALL, nvcc="13.1", settings=["--ds.adam_offload"])[1]
    assert "(nvcc is of CUDA 13.1, torch of 13.0): drop" in problem
    monkeypatch.setenv("DS_SKIP_CUDA_CHECK", "1")  # DeepSpeed's own
    assert not toolchain(*ALL, nvcc="13.1", settings=["--ds.adam_offload"])[1]


def test_what_triton_and_vllm_compile_with_has_to_be_there(toolchain):
    (toolchain.folder / "include/Python.h").unlink()
    compiler, header = toolchain()[1]
    assert compiler.startswith("no C compiler") and "apt-get install gcc" in compiler
    assert header.startswith("no Python.h of python3.") and "-dev" in header
    assert len(toolchain("clang")[1]) == 1


def test_a_compiler_that_is_named_is_the_one_that_is_taken(toolchain, monkeypatch):
    monkeypatch.setenv("CC", "ccache gcc")
    assert toolchain(*ALL, nvcc="13.0")[1] == [
        "CC=ccache gcc is no program, with which Triton and vLLM compile at the start: unset CC"
    ]
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setenv("CXX", "missing++")
    assert toolchain(*ALL, nvcc="13.0")[1:] == ([], [f"no g++: {FUSED}"])


def test_an_nvcc_away_from_its_toolkit_cannot_link(toolchain):
    """As a wrapper of it in /usr/local/bin."""
    (toolchain.folder / "lib64/libcudart.so").unlink()
    words, problems, (note,) = toolchain(*ALL, nvcc="13.0")
    assert problems == [] and note.startswith(
        f"no libcudart.so beside {toolchain.folder}/bin/nvcc, so CUDA_HOME is to be"
    )
    (toolchain.folder / "lib").mkdir()
    (toolchain.folder / "lib/libcudart.so").touch()
    assert toolchain(*ALL, nvcc="13.0")[2] == []


def test_a_torch_for_cpus_is_named(toolchain):
    (problem,) = toolchain(*ALL, nvcc="13.0", torch="")[1]
    assert problem.startswith("the installed torch 2.13.0") and problem.endswith("--force-reinstall torch==2.13.0")


def test_a_lock_that_a_killed_start_left_is_named(toolchain):
    locks = [toolchain.folder / "extensions" / name / "lock" for name in ("fused_adam", "py311_cu130/fused_adam")]
    for lock in locks:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    assert not toolchain(*ALL, nvcc="13.0")[1]  # somebody may compile right now
    for lock in locks:
        os.utime(lock, (time.time() - 3600,) * 2)
        (problem,) = toolchain(*ALL, nvcc="13.0")[1]
        assert problem.endswith(f": rm {lock}")
        assert toolchain(*ALL)[1] == [problem]  # torch takes the lock before it looks for nvcc
        lock.unlink()

"""What is compiled on CPUs, and where its code is kept."""

import importlib
import itertools
import os
from pathlib import Path

import pytest

from openrlhf_sagc.config import compilation
from openrlhf_sagc.config.compilation import CACHE, compile_nothing_on_cpus, keep_compiled_code_by_processor


@pytest.mark.parametrize("accelerator, disabled", [("cpu", "1"), ("cuda", "0"), ("", "0")])
def test_compilation_is_off_on_cpus_alone(monkeypatch, accelerator, disabled):
    monkeypatch.setenv("DS_ACCELERATOR", accelerator)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    monkeypatch.setenv(CACHE, "")
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "1")
    compile_nothing_on_cpus()
    assert os.environ["TORCHDYNAMO_DISABLE"] == disabled


@pytest.mark.parametrize("command", ["__main__", "off", "unpatched"])
def test_every_command_sees_to_it_before_anything_else(monkeypatch, command):
    module = importlib.import_module(f"openrlhf_sagc.{command}")
    seen = []

    def read(_):
        seen.append(os.environ["TORCHDYNAMO_DISABLE"])
        raise SystemExit

    monkeypatch.setattr(module, "use_tree", read)
    monkeypatch.setenv(CACHE, "")
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "1")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    with pytest.raises(SystemExit):
        module.main()
    assert seen == ["1"]


@pytest.fixture
def keep(monkeypatch, tmp_path):
    """keep(flags): the folder of compiled code in a process on a processor with these flags."""
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "1")
    monkeypatch.setenv(CACHE, "")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "PROCESSOR", tmp_path / "cpuinfo")
    megahertz = itertools.count()

    def keep_on(flags, name="flags"):
        (tmp_path / "cpuinfo").write_text(
            f"processor\t: 0\ncpu MHz\t: {next(megahertz)}\n{name}\t: {flags}\n\nprocessor\t: 1\n"
        )
        keep_compiled_code_by_processor()
        return Path(os.environ[CACHE])

    return keep_on


@pytest.mark.parametrize("name", ["flags", "Features"])
def test_each_processor_has_its_compiled_code_in_a_folder_of_its_own(keep, monkeypatch, tmp_path, name):
    first = keep("avx2 avx512f", name)
    assert first.parent == tmp_path / ".cache/openrlhf_sagc/compiled" and os.environ["VLLM_USE_AOT_COMPILE"] == "0"
    assert keep("avx2 avx512f", name) == first  # where a worker's own processes come by here again
    monkeypatch.setenv(CACHE, "")
    assert keep("avx2 avx512f", name) == first
    monkeypatch.setenv(CACHE, "")
    assert keep("avx2", name).parent == first.parent and keep("avx2", name) != first


def test_what_torch_is_told_of_the_processor_counts(keep, monkeypatch):
    first = keep("avx2 avx512f")
    monkeypatch.setenv(CACHE, "")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert keep("avx2 avx512f") != first


def test_a_folder_that_the_user_has_chosen_has_one_for_each_processor(keep, monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE, str(tmp_path / "mine"))
    assert keep("avx2").parent == tmp_path / "mine"


@pytest.mark.parametrize("home", ["~", "/proc/1/none"])
def test_without_a_home_a_process_has_a_folder_of_its_own(keep, monkeypatch, tmp_path, home):
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    monkeypatch.setattr(compilation.tempfile, "tempdir", str(tmp_path))
    assert keep("avx2").parent.parent == tmp_path


def test_a_command_chooses_the_folder_before_torch_does(keep, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    folder = keep("avx2")
    monkeypatch.setenv(CACHE, "")
    compile_nothing_on_cpus()
    assert os.environ[CACHE] == str(folder)

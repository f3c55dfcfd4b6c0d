"""The trees that a package carries, made up, and a process that has not imported any of them."""

import sys
from pathlib import Path

import pytest
from cpu_stack import ROOT

from openrlhf_sagc.run import trees

MODULE = "openrlhf/cli/train_ppo_ray.py"
CODE = {"base": "parser = 1\n", "patched": "import os\n\ndef build_parser():\n    ...\n"}


def make_openrlhf(folder: Path, kind: str) -> Path:
    """An OpenRLHF in the folder, as far as these commands look at one."""
    (folder / MODULE).parent.mkdir(parents=True)
    (folder / "openrlhf/__init__.py").touch()
    (folder / MODULE).write_text(CODE[kind])
    return folder


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A process that has not imported OpenRLHF, in a folder without one, whose package carries four trees."""
    package = tmp_path / "site/openrlhf_sagc"
    for name in ("base", "patched", "cpu-base", "cpu-patched"):
        make_openrlhf(package / "trees" / name, name.removeprefix("cpu-"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "1")
    monkeypatch.setattr(trees, "PACKAGE", package)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.startswith(str(ROOT / "build"))])
    for name in [name for name in sys.modules if name.partition(".")[0] == "openrlhf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openrlhf", None)  # so that what a test imports is undone
    del sys.modules["openrlhf"]
    for name in ("DS_ACCELERATOR", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(trees.GIVEN, "")
    return package / "trees"

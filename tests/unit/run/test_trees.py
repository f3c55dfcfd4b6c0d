"""Which OpenRLHF a command runs, and what it refuses."""

import importlib.machinery
import json
import os
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from made_up_trees import MODULE, make_openrlhf

from openrlhf_sagc.run import trees

pytestmark = pytest.mark.usefixtures("process")


@pytest.mark.parametrize(
    "kind, accelerator, name",
    [
        (trees.PATCHED, "", "patched"),
        (trees.RELEASED, "", "base"),
        (trees.PATCHED, "cuda", "patched"),
        (trees.PATCHED, "cpu", "cpu-patched"),
        (trees.RELEASED, "cpu", "cpu-base"),
    ],
)
def test_command_and_accelerator_choose_the_tree_and_all_processes_have_it_first(
    process, monkeypatch, kind, accelerator, name
):
    monkeypatch.setenv("DS_ACCELERATOR", accelerator)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert trees.use_tree(kind) == trees.use_tree(kind) == (name, process / name)
    assert sys.path[0] == str(process / name)
    assert os.environ["PYTHONPATH"] == f"{process / name}:/mine"
    child = subprocess.run(
        [sys.executable, "-c", "import openrlhf; print(openrlhf.__file__)"], capture_output=True, text=True
    )
    assert child.stdout.strip() == str(process / name / "openrlhf/__init__.py")


def test_an_installed_openrlhf_is_passed_over_and_stays(process, tmp_path, monkeypatch):
    installed = make_openrlhf(tmp_path / "other-site", "base")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    before = sorted(installed.rglob("*"))
    assert trees.use_tree(trees.PATCHED).folder == process / "patched"
    assert sorted(installed.rglob("*")) == before


def test_a_clone_has_its_trees_in_build(process, tmp_path):
    shutil.rmtree(process)
    built = make_openrlhf(tmp_path / "site/build/patched", "patched")
    assert trees.use_tree(trees.PATCHED).folder == built


def test_without_trees_the_line_says_where_they_come_from(process):
    shutil.rmtree(process)
    assert refused_line() == (
        f"no OpenRLHF in {process}/patched: install this package's wheel, or bash patches/build.sh in its clone"
    )


def refused_line(kind=trees.PATCHED) -> str:
    with pytest.raises(SystemExit, match="^openrlhf_sagc: [^\n]+$") as ended:
        trees.use_tree(kind)
    return str(ended.value).removeprefix("openrlhf_sagc: ")


@pytest.mark.parametrize("kind, named", [(trees.PATCHED, "patched"), (trees.RELEASED, "base")])
def test_a_tree_that_pythonpath_names_is_used(tmp_path, monkeypatch, kind, named):
    own = make_openrlhf(tmp_path / "work", named)
    monkeypatch.setenv("PYTHONPATH", f"/mine:{own}")
    assert trees.use_tree(kind).folder == own
    assert os.environ["PYTHONPATH"] == f"/mine:{own}" and sys.path[0] == str(own)


@pytest.mark.parametrize(
    "kind, named, why",
    [
        (trees.PATCHED, "base", "is not patched"),
        (trees.RELEASED, "patched", "is patched"),
    ],
)
def test_another_openrlhf_in_pythonpath_is_passed_over(process, tmp_path, monkeypatch, capsys, kind, named, why):
    """That of a fork or an older clone, as most launch scripts of others have it."""
    other = make_openrlhf(tmp_path / "other", named)
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert trees.use_tree(kind).folder == process / kind
    assert os.environ["PYTHONPATH"] == f"{process / kind}:{other}" and sys.path[0] == str(process / kind)
    assert capsys.readouterr().err == (
        f"openrlhf_sagc: {other}/openrlhf {why}, and is passed over: this run is of the package's own OpenRLHF 0.11.2\n"
    )


def test_a_tree_behind_one_that_is_passed_over_comes_first(process, tmp_path, monkeypatch):
    other, own = make_openrlhf(tmp_path / "other", "base"), make_openrlhf(tmp_path / "work", "patched")
    monkeypatch.setenv("PYTHONPATH", f"{other}:{own}")
    assert trees.use_tree(trees.PATCHED).folder == own
    assert os.environ["PYTHONPATH"] == f"{own}:{other}" and sys.path[0] == str(own)


def test_the_working_dir_of_a_job_is_passed_over(process, tmp_path, monkeypatch, capsys):
    """Ray puts it into PYTHONPATH, and does not put the command's folder before all else then."""
    monkeypatch.chdir(make_openrlhf(tmp_path / "clone", "base"))
    monkeypatch.setenv(trees.JOB, json.dumps({"runtime_env": {"working_dir": "gcs://a.zip"}}))
    assert trees.use_tree(trees.PATCHED).folder == process / "patched"
    assert f"{tmp_path}/clone/openrlhf is not patched, and is passed over" in capsys.readouterr().err


def test_a_working_folder_that_holds_another_openrlhf_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(make_openrlhf(tmp_path / "clone", "base"))
    assert refused_line() == (
        f"{tmp_path}/clone/openrlhf would come before this package's OpenRLHF, and is not patched: start in another folder"
    )
    Path(MODULE).unlink()
    assert "and is no OpenRLHF: start in another folder" in refused_line()


@pytest.mark.parametrize("says", ["version.txt", "openrlhf-0.11.1.dist-info"])
def test_another_version_is_passed_over(process, tmp_path, monkeypatch, capsys, says):
    other = make_openrlhf(tmp_path / "other", "base")
    (other / "version.txt").write_text("0.11.1\n") if says == "version.txt" else (other / says).mkdir()
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert trees.use_tree(trees.RELEASED).folder == process / "base"
    assert "is 0.11.1, while the patches are for 0.11.2, and is passed over" in capsys.readouterr().err


def test_an_openrlhf_that_was_imported_already_is_refused(tmp_path, monkeypatch):
    other = make_openrlhf(tmp_path / "other", "base")
    imported = types.ModuleType("openrlhf")
    imported.__path__ = [str(other / "openrlhf")]
    imported.__spec__ = importlib.machinery.ModuleSpec("openrlhf", None, is_package=True)
    monkeypatch.setitem(sys.modules, "openrlhf", imported)
    assert (
        refused_line() == f"openrlhf was imported from {other} before the command began: start the command by itself"
    )


def test_what_a_run_needs_besides_is_looked_for(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    trees.check_stack()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("ray", "vllm") else find(name))
    with pytest.raises(
        SystemExit, match=r"^openrlhf_sagc: no module ray vllm: install this package with \[gpu\] behind"
    ):
        trees.check_stack()


def test_flash_attn_is_needed_by_openrlhf_as_released_only(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "flash_attn" else find(name))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    trees.check_stack(trees.RELEASED)
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    trees.check_stack()
    with pytest.raises(SystemExit, match="^openrlhf_sagc: no module flash_attn, .*: pip install flash-attn=="):
        trees.check_stack(trees.RELEASED)


@pytest.mark.parametrize(
    "module, name",
    [("openrlhf_sagc", "patched"), ("openrlhf_sagc.off", "patched"), ("openrlhf_sagc.unpatched", "base")],
)
def test_each_command_uses_its_tree_before_it_reads_flags(monkeypatch, module, name):
    used = []

    def use(kind):
        used.append(kind)
        raise InterruptedError

    monkeypatch.setattr(trees, "use_tree", use)
    monkeypatch.setattr(sys, "argv", [module, "--no_such_flag"])
    with pytest.raises(InterruptedError):
        runpy.run_module(module, run_name="__main__")
    assert used == [name]

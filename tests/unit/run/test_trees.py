"""Which OpenRLHF a command runs, what it refuses, and how the tree comes to Ray's workers."""

import importlib.machinery
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from ray.runtime_env.runtime_env import _merge_runtime_env as merge

from openrlhf_sagc.config.compilation import CACHE
from openrlhf_sagc.run import trees

MODULE = "openrlhf/cli/train_ppo_ray.py"
CODE = {"base": "parser = 1\n", "patched": "import os\n\ndef build_parser():\n    ...\n"}


def make_openrlhf(folder: Path, kind: str) -> Path:
    """An OpenRLHF in the folder, as far as these commands look at one."""
    (folder / MODULE).parent.mkdir(parents=True)
    (folder / "openrlhf/__init__.py").touch()
    (folder / MODULE).write_text(CODE[kind])
    return folder


@pytest.fixture(autouse=True)
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


@pytest.fixture
def ray_init(monkeypatch):
    """What Ray was started with."""
    started = []
    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(init=lambda *args, **settings: started.append((args, settings)))
    )
    return started


def test_ray_gets_the_tree_besides_what_openrlhf_starts_it_with(process, ray_init):
    import ray

    init = ray.init
    trees.bring_tree(trees.use_tree(trees.PATCHED), eager=False)
    ray.init("auto", runtime_env={"env_vars": {"NCCL_DEBUG": "WARN"}, "pip": []}, namespace="n")
    ((args, settings),) = ray_init
    variables = settings["runtime_env"].pop("env_vars")
    name, digest = variables.pop(trees.GIVEN).split()
    assert name == "patched" and len(digest) == 16 and variables == {"NCCL_DEBUG": "WARN"}
    hook = "openrlhf_sagc.run.trees.use_given_tree"
    assert args == ("auto",) and settings == {
        "runtime_env": {"pip": [], "worker_process_setup_hook": hook},
        "namespace": "n",
    }
    assert ray.init is init
    module, _, function = hook.rpartition(".")
    assert getattr(importlib.import_module(module), function) is trees.use_given_tree


@pytest.mark.parametrize("kind, accelerator", [(trees.PATCHED, ""), (trees.RELEASED, ""), (trees.PATCHED, "cpu")])
def test_what_a_submitted_job_gives_counts(process, ray_init, monkeypatch, kind, accelerator):
    """Ray's own merge of both takes it, which refuses what both give; tests/stack/test_job_settings.py has a real start."""
    import ray

    monkeypatch.setenv("DS_ACCELERATOR", accelerator)
    of_job = {"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false", "TORCHDYNAMO_DISABLE": "0", "MINE": "1"}
    job = {"env_vars": of_job, "pip": ["a"], "py_modules": ["gcs://b.zip"], "working_dir": "gcs://c.zip"}
    monkeypatch.setenv(trees.JOB, json.dumps({"runtime_env": job, "metadata": {}}))
    trees.bring_tree(trees.use_tree(kind), eager=True)
    variables = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "INFO", "OPENRLHFS": "1"}
    ray.init(runtime_env={"env_vars": variables, "pip": ["d"], "excludes": ["*.pt"]})
    merged = dict(merge(job, ray_init[-1][1]["runtime_env"]))
    assert merged["env_vars"].pop(trees.GIVEN) and merged.pop(trees.HOOK)
    assert merged == {**job, "env_vars": {**of_job, "OPENRLHFS": "1"}, "excludes": ["*.pt"]}


@pytest.mark.parametrize("job", [{}, {"runtime_env": None}, {"runtime_env": {"env_vars": None, "pip": []}}])
def test_a_job_without_variables_takes_openrlhfs(process, ray_init, monkeypatch, job):
    import ray

    monkeypatch.setenv(trees.JOB, json.dumps(job))
    trees.bring_tree(trees.use_tree(trees.PATCHED), eager=True)
    ray.init(runtime_env={"env_vars": {"NCCL_DEBUG": "WARN"}})
    assert ray_init[-1][1]["runtime_env"]["env_vars"]["NCCL_DEBUG"] == "WARN"


def test_a_job_with_a_setup_hook_of_its_own_is_refused(process, ray_init, monkeypatch):
    """Ray takes one. The same one may stand in both."""
    import ray

    for hook in ("mine.hook", "openrlhf_sagc.run.trees.use_given_tree"):
        monkeypatch.setenv(trees.JOB, json.dumps({"runtime_env": {trees.HOOK: hook}}))
        trees.bring_tree(trees.use_tree(trees.PATCHED), eager=True)
        if hook == "mine.hook":
            with pytest.raises(
                SystemExit, match=f"^openrlhf_sagc: the job's runtime environment has {trees.HOOK} mine.hook, "
            ):
                ray.init()
        else:
            ray.init()
            assert trees.HOOK not in ray_init[-1][1]["runtime_env"]


def variables_given(ray_init, kind=trees.PATCHED, eager=True) -> dict[str, str]:
    """What the command gives the workers."""
    import ray

    trees.bring_tree(trees.use_tree(kind), eager)
    ray.init()
    return ray_init[-1][1]["runtime_env"]["env_vars"]


def given(ray_init, kind=trees.PATCHED) -> str:
    """The tree that the command gives the workers."""
    return variables_given(ray_init, kind)[trees.GIVEN]


@pytest.fixture
def worker(process, ray_init, monkeypatch):
    """A worker's process, given the patched tree: it starts where Ray was started, and does not import from there."""
    text = given(ray_init)
    del sys.modules["openrlhf"]
    monkeypatch.setattr(sys, "path", sys.path[1:])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv(trees.GIVEN, text)
    return process


def test_a_worker_uses_the_tree_of_its_node(worker, tmp_path, monkeypatch):
    monkeypatch.chdir(make_openrlhf(tmp_path / "clone", "base"))
    trees.use_given_tree()
    assert sys.path[0] == os.environ["PYTHONPATH"] == str(worker / "patched")


@pytest.mark.parametrize("eager, folder", [(True, r"compiled"), (False, r"compiled/\w{16}")])
def test_a_worker_of_a_command_on_cpus_trains_there(process, ray_init, monkeypatch, eager, folder):
    """Whatever Ray was started with. Without anything to compile it needs no folder, and so no home."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv(CACHE, "compiled")
    for name, value in variables_given(ray_init, eager=eager).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DS_ACCELERATOR", "")
    trees.use_given_tree()
    assert os.environ["DS_ACCELERATOR"] == "cpu" and re.fullmatch(folder, os.environ[CACHE])


def test_a_worker_on_gpus_is_left_alone(worker, monkeypatch):
    monkeypatch.setenv(CACHE, "compiled")
    trees.use_given_tree()
    assert os.environ[CACHE] == "compiled" and os.environ["DS_ACCELERATOR"] == ""


@pytest.mark.parametrize("eager, disabled", [(True, "1"), (False, "0")])
def test_engines_on_cpus_are_compiled_where_the_run_has_no_eager_ones(
    process, ray_init, monkeypatch, capsys, eager, disabled
):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert variables_given(ray_init, eager=eager)["TORCHDYNAMO_DISABLE"] == disabled
    assert ("--vllm.enforce_eager" in capsys.readouterr().err) != eager


@pytest.mark.parametrize("eager", [True, False])
def test_what_is_compiled_on_gpus_is_openrlhfs_matter(process, ray_init, capsys, eager):
    assert "TORCHDYNAMO_DISABLE" not in variables_given(ray_init, eager=eager)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("changed", [f"trees/patched/{MODULE}", "run/trees.py"])
def test_a_worker_with_other_code_than_the_command_says_so(worker, changed):
    file = worker.parent / changed
    file.parent.mkdir(exist_ok=True)
    file.write_text(CODE["patched"] + "# of another wheel\n")
    with pytest.raises(RuntimeError) as ended:  # Ray lets a SystemExit end the worker without a word
        trees.use_given_tree()
    assert str(ended.value) == (
        f"openrlhf_sagc: {worker.parent}, or its OpenRLHF, differs from that of the command: install it anew on every node"
    )


def test_the_notices_of_a_wheel_make_no_difference_to_a_clone(worker):
    notice = runpy.run_path(str(ROOT / "patches/trees.py"))["NOTICE"]
    (worker / "patched" / MODULE).write_text(notice + CODE["patched"])
    (worker / "base" / MODULE).write_text("another tree")
    trees.use_given_tree()


def test_a_working_dir_that_holds_an_openrlhf_is_passed_over_in_a_worker(worker, tmp_path, monkeypatch, capsys):
    other = make_openrlhf(tmp_path / "working_dir", "base")
    monkeypatch.setenv("PYTHONPATH", str(other))
    monkeypatch.syspath_prepend(str(other))  # as Python has it by then
    trees.use_given_tree()
    assert sys.path[0] == str(worker / "patched") and os.environ["PYTHONPATH"] == f"{worker / 'patched'}:{other}"
    child = "import openrlhf; print(openrlhf.__file__)"
    told = subprocess.run([sys.executable, "-P", "-c", child], capture_output=True, text=True)
    assert told.stdout.strip() == str(worker / "patched/openrlhf/__init__.py") and not capsys.readouterr().err


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

"""How the tree of a command comes to Ray's workers, and what else they get."""

import importlib.machinery
import json
import os
import re
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from made_up_trees import CODE, MODULE, make_openrlhf
from ray.runtime_env.runtime_env import _merge_runtime_env as merge

from openrlhf_sagc.config.compilation import CACHE
from openrlhf_sagc.run import trees

pytestmark = pytest.mark.usefixtures("process")


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

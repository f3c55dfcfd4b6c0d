"""The start of OpenRLHF alone on the CPU stack: its folders are held once its flags are checked, and then moved."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT, cpu_environment
from run_files import args_for

from openrlhf_sagc.run.output_folders import held_folders

SCRIPT = ROOT / "train_scripts/train_on_cpu.py"
RELEASED, OFF, OWN = "openrlhf_sagc.unpatched", "openrlhf_sagc.off", "openrlhf_sagc"


@pytest.fixture
def on_cpu():
    spec = importlib.util.spec_from_file_location("train_on_cpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.HELD.close()


@pytest.fixture
def outputs(tmp_path):
    """The folders of an earlier run, and a command's flags for them."""
    for name in ("trained/model.safetensors", "tensorboard/run/events.out.tfevents.1"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("an earlier run's")
    flags = ["--ckpt.output_dir", "elsewhere", f"--ckpt.output_dir={tmp_path}/trained", "--data.max_len", "256"]
    return [*flags, "--logger.tensorboard_dir", str(tmp_path / "tensorboard"), "--logger.wandb.run_name", "run"]


def models(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("module", [RELEASED, OFF])
def test_what_an_earlier_run_left_is_moved_aside(on_cpu, outputs, tmp_path, module):
    """For later flags win; the package's own command does it itself."""
    on_cpu.hold_outputs(OWN, tuple(outputs))
    assert models(tmp_path) == ["trained/model.safetensors"]
    on_cpu.hold_outputs(module, tuple(outputs))
    assert models(tmp_path) == ["trained/earlier-1/model.safetensors"]
    assert (tmp_path / "tensorboard/run/earlier-1/events.out.tfevents.1").exists()
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(SystemExit, match="--ckpt.output_dir .*/trained is in use by another run"):
        with held_folders(args_for(tmp_path, save_steps=-1, load=False)):
            pass


def test_nothing_is_moved_while_another_run_holds_it(on_cpu, outputs, tmp_path):
    with held_folders(args_for(tmp_path, save_steps=-1, load=False)):
        with pytest.raises(SystemExit, match="is in use by another run"):
            on_cpu.hold_outputs(RELEASED, tuple(outputs))
    assert models(tmp_path) == ["trained/model.safetensors"]


def test_without_a_name_the_log_is_left_alone(on_cpu, outputs, tmp_path):
    on_cpu.hold_outputs(RELEASED, tuple(outputs[:-2]))
    assert (tmp_path / "tensorboard/run/events.out.tfevents.1").exists()


@pytest.mark.parametrize("tree", ["cpu-base", "cpu-patched"])
@pytest.mark.parametrize(
    "flags, said",
    [
        (["--no.such_flag"], "--no.such_flag"),
        (["--ckpt.save_steps", "often"], "--ckpt.save_steps: invalid int value: 'often'"),
    ],
)
def test_a_mistyped_flag_costs_no_model(outputs, tmp_path, python, tree, flags, said):
    """The whole way through train.sh, up to the parser."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(python)
    environment = {**os.environ, **cpu_environment(tree), "WARM_PYTHON": str(python)}
    command = ["bash", ROOT / "train_scripts/countdown/train.sh", tree, tmp_path / "task", tmp_path, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode and said in done.stderr, done.stderr[-2000:]
    assert models(tmp_path) == ["trained/model.safetensors"]
    assert (tmp_path / "tensorboard/run/events.out.tfevents.1").exists()


@pytest.mark.parametrize("words", [[], ["cpu-base"], ["cpu-base", "task"]])
def test_train_sh_without_all_its_words_is_one_line(words):
    done = subprocess.run(
        ["bash", ROOT / "train_scripts/countdown/train.sh", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2
    assert done.stderr == "train_scripts/countdown/train.sh: usage: train.sh TREE TASK OUTPUT [FLAG...]\n"


def test_ray_starts_after_that(on_cpu, monkeypatch):
    """OpenRLHF asks for Ray once its flags are checked."""
    calls = []
    monkeypatch.setattr("ray.init", lambda **settings: calls.append(settings))
    monkeypatch.setattr(on_cpu, "hold_outputs", lambda *words: calls.append(words))
    run = lambda name, **_: calls.append(name) or on_cpu.ray.init(runtime_env={})  # noqa: E731
    monkeypatch.setattr(on_cpu, "runpy", SimpleNamespace(run_module=run))
    monkeypatch.setattr(sys, "argv", ["train_on_cpu.py", RELEASED, "--data.max_len", "9"])
    on_cpu.main()
    assert calls == [RELEASED, (RELEASED, ("--data.max_len", "9")), {"runtime_env": {}, "include_dashboard": False}]

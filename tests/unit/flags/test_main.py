"""The command: which trainer a run starts, by its flags, and of what."""

import os
import runpy
import subprocess
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_trainer_async import PPOTrainerAsync
from ray.exceptions import RayActorError, RayTaskError
from train_command import FLAGS

from openrlhf_sagc.driver.trainers import GroupTrainer, GroupTrainerAsync

ASYNC = "--train.async_enable"


@pytest.mark.parametrize(
    "flags, cls",
    [
        ([], PPOTrainer),
        ([ASYNC], PPOTrainerAsync),
        (["--algo.dynamic_filtering_enable"], PPOTrainer),
        (["--rollout.sagc.enable"], GroupTrainer),
        (["--rollout.tail_batching.enable"], GroupTrainer),
        (["--rollout.sagc.enable", ASYNC], GroupTrainerAsync),
        (["--rollout.tail_batching.enable", ASYNC], GroupTrainerAsync),
    ],
)
def test_trainer_follows_the_flags(start_run, flags, cls):
    assert start_run(*flags).cls is cls


@pytest.mark.parametrize("flags", [[], [ASYNC], ["--train.batch_size", "32", "--algo.kl.init_coef", "0"]])
def test_without_its_switch_arguments_are_those_of_unpatched_openrlhf(start_run, flags):
    ours, theirs = start_run(*flags), start_run(*flags, unpatched="base")
    assert ours.models == theirs.models
    for section, values in vars(theirs.args).items():
        own = getattr(ours.args, section)
        if isinstance(values, SimpleNamespace):
            assert vars(own).items() >= vars(values).items()
        else:
            assert own == values


@pytest.mark.parametrize("module, has", [("openrlhf_sagc", True), ("openrlhf.cli.train_ppo_ray", False)])
def test_flags_are_in_the_help_of_the_packages_command_alone(run_in_tree, module, has):
    shown = run_in_tree("cpu-patched", "-m", module, "--help")
    assert "--rollout.n_samples_per_prompt" in shown and ("--rollout.sagc.enable" in shown) == has


def test_unpatched_openrlhf_is_refused(python):
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT / "build/cpu-base")}
    result = subprocess.run([python, "-m", "openrlhf_sagc"], env=environment, capture_output=True, text=True)
    last = result.stderr.splitlines()[-1]
    assert result.returncode == 1
    assert "build/cpu-base/openrlhf/cli/train_ppo_ray.py is not of the patched OpenRLHF: install" in last


@pytest.fixture
def run_main(tmp_path, monkeypatch):
    """run_main(train, *flags): the command with its output in tmp_path, where `train` stands for OpenRLHF's training."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1"}\n' * 200)
    flags = {
        **FLAGS,
        "--data.prompt_dataset": prompts,
        "--ckpt.output_dir": tmp_path,
        "--ckpt.path": tmp_path / "saved",
    }
    words = [str(word) for pair in flags.items() for word in pair]

    def run(train, *more):
        monkeypatch.setattr("sys.argv", ["openrlhf_sagc", *words, *more])
        monkeypatch.setattr("openrlhf.cli.train_ppo_ray.train", train)
        runpy.run_module("openrlhf_sagc", run_name="__main__")

    return run


def test_a_run_holds_its_folders_while_it_trains(run_main, tmp_path):
    def train(args, trainer_cls):
        with pytest.raises(SystemExit, match=f"--ckpt.output_dir {tmp_path} is in use by another run, process"):
            run_main(mock.Mock(), "--rollout.sagc.enable")
        run_main(training)  # OpenRLHF's own run, without the switch

    training = mock.Mock()
    run_main(mock.Mock(side_effect=train), "--rollout.sagc.enable")
    run_main(training, "--rollout.sagc.enable")
    assert training.call_count == 2


def test_a_resumed_run_chooses_its_checkpoint(run_main, tmp_path):
    checkpoint = tmp_path / "saved" / "_actor" / "global_step1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metric.json").write_text("{}")
    training, resumed = mock.Mock(), ["--rollout.sagc.enable", "--ckpt.load_enable"]
    with pytest.raises(SystemExit, match="--ckpt.load_enable finds no whole checkpoint in .*saved/_actor"):
        run_main(training, *resumed)
    run_main(training, "--rollout.sagc.enable")
    training.assert_called_once()


@pytest.mark.parametrize("wrapped", [False, True], ids=["the trainer", "an actor that the trainer waited for"])
def test_a_process_that_dies_is_named_in_one_line(run_main, wrapped):
    error = RayActorError(error_msg="The actor died.\n\tclass_name: PolicyModelActor\n\tpid: 12")
    if wrapped:
        error = RayTaskError("GroupTrainer.fit", "a long traceback", error).as_instanceof_cause()
    dies = mock.Mock(side_effect=error)
    with pytest.raises(SystemExit) as ended:
        run_main(dies, "--rollout.sagc.enable")
    assert str(ended.value) == (
        "openrlhf_sagc: a process of the run has died: The actor died. class_name: PolicyModelActor pid: 12; its log says "
        "why, start again with --ckpt.load_enable"
    )
    with pytest.raises(RayActorError):
        run_main(dies)

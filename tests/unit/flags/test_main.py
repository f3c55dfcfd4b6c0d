"""The command: which trainer a run starts, by its flags, and of what."""

import os
import subprocess
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_trainer_async import PPOTrainerAsync

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
    ours, theirs = start_run(*flags), start_run(*flags, unpatched=True)
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

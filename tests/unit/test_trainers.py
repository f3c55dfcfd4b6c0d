"""The trainers that a run starts, by its flags, and what the package's own add to OpenRLHF's."""

import os
import pickle
import subprocess
from types import SimpleNamespace
from unittest import mock

import pytest
from cpu_stack import ROOT
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer
from openrlhf.trainer.ppo_trainer_async import PPOTrainerAsync

from openrlhf_sagc.experience import GroupExperienceMaker
from openrlhf_sagc.rollout import Step, StragglerAwareSamplesGenerator
from openrlhf_sagc.trainers import GroupGenerator, GroupTrainer, GroupTrainerAsync, GroupTrainingActor

FLAGS = {
    "--actor.model_name_or_path": "model",
    "--reward.remote_url": "reward.py",
    "--rollout.batch_size": "8",
    "--rollout.n_samples_per_prompt": "8",
    "--train.batch_size": "64",
    "--actor.num_gpus_per_node": "1",
    "--algo.advantage.estimator": "group_norm",
    "--vllm.num_engines": "1",
}
ASYNC = "--train.async_enable"


@pytest.fixture
def start(start_trainer, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"input": "1"}\n' * 200)
    words = [word for pair in FLAGS.items() for word in pair] + ["--data.prompt_dataset", str(prompts)]
    return lambda *flags, **how: start_trainer([*words, *flags], **how)


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
def test_trainer_follows_the_flags(start, flags, cls):
    assert start(*flags).cls is cls


@pytest.mark.parametrize("flags", [[], [ASYNC], ["--train.batch_size", "32", "--algo.kl.init_coef", "0"]])
def test_without_its_switch_arguments_are_those_of_unpatched_openrlhf(start, flags):
    ours, theirs = start(*flags), start(*flags, unpatched=True)
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
def make(monkeypatch):
    """make(cls, *flags, **more) -> a trainer, or an actor of one, from its own constructor; models and prompts are made up."""
    prompts = mock.MagicMock(__len__=lambda _: 8)
    for module in (ppo_trainer, ppo_trainer_async):
        monkeypatch.setattr(module, "get_tokenizer", lambda *_, **__: "tokenizer")
        monkeypatch.setattr(module, "prepare_datasets", lambda *_: (prompts, None, 7))

    def run(cls, args, *models, **more):
        return cls("model", SimpleNamespace(args=args), *models, **more)

    return run


def assert_makes_experiences_of_groups(trainer):
    maker = trainer.experience_maker
    assert type(maker) is GroupExperienceMaker
    assert maker.actor_model_group == "actor" and maker.initial_model_group == "reference"
    assert maker.kl_ctl is trainer.kl_ctl and maker.tokenizer == "tokenizer"


def assert_rolls_out_groups(owner):
    generator = owner.samples_generator
    assert type(generator) is StragglerAwareSamplesGenerator
    assert generator.prompts_dataloader is owner.prompts_dataloader and generator.tokenizer == "tokenizer"


def test_synchronous_trainer(start, make):
    args = start("--rollout.sagc.enable").args
    trainer = make(GroupTrainer, args, "actor", None, None, "reference", [])
    assert_makes_experiences_of_groups(trainer)
    assert_rolls_out_groups(trainer)


def test_asynchronous_trainer(start, make, monkeypatch):
    """Its two actors, each made as OpenRLHF's trainer makes it."""
    args = start("--rollout.sagc.enable", ASYNC).args
    made = []

    def remote(cls):
        def make_actor(**settings):
            made.append(make(cls, args, **{k: v for k, v in settings.items() if k not in ("pretrain", "strategy")}))
            return made[-1]

        return SimpleNamespace(remote=make_actor)

    monkeypatch.setattr(ppo_trainer_async.ray, "remote", remote)
    monkeypatch.setattr(ppo_trainer_async, "Queue", mock.Mock())
    monkeypatch.setattr(ppo_trainer_async, "VLLMLock", mock.Mock())
    make(GroupTrainerAsync, args, "actor", None, None, "reference", [])
    assert [type(actor) for actor in made] == [GroupGenerator, GroupTrainingActor]
    assert_rolls_out_groups(made[0])
    assert_makes_experiences_of_groups(made[1])


@pytest.mark.parametrize("cls", [GroupTrainer, GroupTrainingActor])
def test_the_steps_metrics_are_logged_after_it_came_through_a_queue(cls, monkeypatch):
    step = pickle.loads(pickle.dumps(Step(["sample"], {"sagc/group_size": 8.0})))
    monkeypatch.setattr(BasePPOTrainer, "train_step", lambda self, samples, step: ({"samples": samples}, step + 1))
    assert cls.__new__(cls).train_step(step, 3) == ({"samples": ["sample"], "sagc/group_size": 8.0}, 4)

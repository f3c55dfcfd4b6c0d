"""For all unit tests: the scheduler on simulated engines, and experiences on their way to the actors."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from cpu_stack import ROOT
from fake_engines import make_generator  # noqa: F401
from hypothesis import HealthCheck, settings
from launched import commands, flags_of, many_prompts  # noqa: F401
from openrlhf.trainer.ppo_utils.experience import (
    balance_experiences,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from train_command import start_run, start_trainer  # noqa: F401
from up_to_ray import prompts, run_trainer  # noqa: F401

import openrlhf_sagc.config.inputs as inputs
import openrlhf_sagc.driver.experience as experience
import openrlhf_sagc.run.trees as trees
from openrlhf_sagc import redaction
from openrlhf_sagc.training.rollout_rewards import SAMPLE
from openrlhf_sagc.training.training import StepShare

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines pause
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def no_store(monkeypatch):
    """`ray.put` would start a Ray cluster; what is put stands for its reference."""
    monkeypatch.setattr(experience.ray, "put", lambda value: value)


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """A hub that has every model."""
    monkeypatch.setattr(inputs, "missing_on_hub", lambda model: "")


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch):
    """Flags that another test gave hide no text of this one."""
    monkeypatch.setattr(redaction, "_hidden", set())


@pytest.fixture
def openrlhf_of(monkeypatch):
    """openrlhf_of(tree): from now on the OpenRLHF that commands use and find is that of build/TREE, where it is not imported."""
    find = importlib.util.find_spec

    def use(tree):
        spec = SimpleNamespace(submodule_search_locations=[str(ROOT / "build" / tree / "openrlhf")])
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *more: spec if name == "openrlhf" else find(name, *more)
        )
        monkeypatch.setattr(trees, "use_tree", lambda kind: trees.Tree(tree, ROOT / "build" / tree))

    return use


@pytest.fixture
def train_batches(monkeypatch):
    """train_batches(maker, experiences, micro_batch) -> the micro-batches that actors train on, with advantages.

    Driver and actors as OpenRLHF has them: experiences are made, balanced over two actors as with dynamic batches if
    `balanced`, cut into samples, shuffled and put together anew. Each batch has its samples' numbers in `index`.
    """
    monkeypatch.setattr(experience.ray, "get", lambda results: results)
    monkeypatch.setattr(ActorPPOTrainer, "training_step", lambda self, batch, *_: batch)

    def run(maker, experiences, micro_batch, balanced=False):
        model_actor = SimpleNamespace(max_steps=0, actor_scheduler=SimpleNamespace(last_epoch=0))
        args = SimpleNamespace(
            rollout=SimpleNamespace(batch_size=4, n_samples_per_prompt=8),
            train=SimpleNamespace(dynamic_batch_enable=True, batch_size=32, micro_batches="length"),
            ds=SimpleNamespace(packing_samples=True, zero_stage=3),
            actor=SimpleNamespace(aux_loss_coef=0.0),
        )
        model_actor.strategy = SimpleNamespace(args=args, train_batch_size=32, optimizer_step=None)
        model_actor.trainer = SimpleNamespace(
            strategy=model_actor.strategy,
            args=args,
            actor_loss_fn=None,
            replay_buffer=SimpleNamespace(dynamic_batch=False),
        )
        call = SimpleNamespace(async_run_method=lambda name, function, *args: function(model_actor, *args))
        maker.actor_model_group, maker._step = call, StepShare(0.0, len(maker._group_sizes))
        for batch in experiences:
            batch.sequences = batch.attention_mask = torch.ones(len(batch.action_mask), batch.action_mask.size(1) + 1)
            batch.total_length = batch.action_mask.sum(dim=1)
        made = maker.compute_advantages_and_returns(experiences)
        if balanced:
            two = SimpleNamespace(actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2))
            two.ds = SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1)
            made = balance_experiences(made, two)
        samples = [sample for batch in made for sample in remove_padding_in_sequences(split_experience_batch(batch))]
        for sample in samples:
            sample.action_log_probs = torch.zeros(sample.action_mask.shape)  # of the pass before the training
        samples = [samples[i] for i in torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))]
        batches = []
        for start in range(0, len(samples), micro_batch):
            batch = make_experience_batch(samples[start : start + micro_batch])
            batch.index = torch.stack(batch.info[SAMPLE]).tolist()
            batches.append(model_actor.trainer.training_step(batch, 0.0, 0))
        return batches

    return run

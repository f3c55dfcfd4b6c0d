"""The moving average in a checkpoint; tests/deepspeed/test_resumed_training.py has runs of one and two ranks."""

from types import SimpleNamespace

import pytest
import torch

from openrlhf_sagc.training.average import load_average, save_average


def actor_of(folder, value, stage=2, rank=0, disable_ds=False):
    """A policy's actor whose average has this value everywhere, and its weights another."""
    ckpt = SimpleNamespace(path=str(folder), disable_ds=disable_ds)
    args = SimpleNamespace(ckpt=ckpt, ds=SimpleNamespace(use_universal_ckpt=False))
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    for model, filled in zip(models, (value, -1.0)):
        for parameter in model.parameters():
            parameter.data.fill_(filled)
    strategy = SimpleNamespace(args=args, stage=stage, is_rank_0=lambda: rank == 0)
    return SimpleNamespace(strategy=strategy, ema_model=models[0], actor=models[1])


def values(actor):
    return {float(value) for parameter in actor.ema_model.parameters() for value in parameter.flatten()}


@pytest.fixture
def saved(tmp_path):
    """The checkpoint that `latest` names, without an average."""
    (tmp_path / "_actor/global_step3").mkdir(parents=True)
    (tmp_path / "_actor/latest").write_text("global_step3")
    return tmp_path / "_actor/global_step3"


def test_every_rank_loads_what_rank_0_has_saved(tmp_path, saved):
    save_average(actor_of(tmp_path, 7.0, rank=1), "global_step3")
    assert not list(saved.iterdir())
    save_average(actor_of(tmp_path, 7.0), "global_step3")
    for rank in (0, 1):
        assert load_average(resumed := actor_of(tmp_path, 0.0, rank=rank)) and values(resumed) == {7.0}


def test_a_checkpoint_without_an_average_begins_it_with_its_weights(tmp_path, saved):
    resumed = actor_of(tmp_path, 0.0)
    assert not load_average(resumed) and values(resumed) == {-1.0}


def test_a_run_without_checkpoints_of_deepspeed_saves_none(tmp_path, saved):
    save_average(actor_of(tmp_path, 7.0, disable_ds=True), "global_step3")
    assert not list(saved.iterdir())

"""The places of samples among a step's rewards; tests/unit/driver/test_experience.py has the advantages."""

import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, split_experience_batch

import openrlhf_sagc.training.rollout_rewards as module
from openrlhf_sagc.advantages.estimators import ESTIMATORS, Estimator
from openrlhf_sagc.training.rollout_rewards import SAMPLE, RolloutRewards, numbered, rollout_advantages


@pytest.mark.parametrize("first", [0, 2])
def test_a_samples_place_survives_openrlhfs_batches_and_is_not_logged(first):
    rewards_N = torch.arange(8.0)
    rewards = RolloutRewards(rewards_N, torch.tensor([0, 8]), "dr_grpo", None, 0.0, 0.0, 1.0)
    mask = torch.ones(4, 3, dtype=torch.long)
    batch = Experience(sequences=torch.ones(4, 5), action_mask=mask, index=[3, 0, 5, 1], info={})
    numbered(batch, first)
    samples = split_experience_batch(batch)[::-1]
    batch = make_experience_batch(samples)
    advantages_BT = rollout_advantages(rewards, batch)
    places = torch.tensor([1, 5, 0, 3]) + first
    assert advantages_BT.tolist() == (rewards_N[places] - rewards_N.mean()).unsqueeze(1).expand(4, 3).tolist()
    assert batch.info.keys() == {"group_reward_std", "advantage_kernel"}


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def on_a_gpu(monkeypatch, kernel, estimator="rloo"):
    """advantages() -> those of a micro-batch on a GPU whose kernel's module is this, with its info."""
    monkeypatch.setattr(module, "_refused", [])
    monkeypatch.setitem(sys.modules, "openrlhf_sagc.advantages.kernel", kernel)
    rewards = RolloutRewards(torch.arange(4.0), torch.tensor([0, 4]), estimator, (-1.0, 2.0), 0.0, 0.5, 2.0)

    def advantages(kind=OnGPU):
        mask = torch.ones(3, 2, dtype=torch.long)
        batch = Experience(action_mask=mask.as_subclass(kind), info={SAMPLE: [*torch.tensor([3, 0, 1])]})
        return rollout_advantages(rewards, batch).as_subclass(torch.Tensor), batch.info

    return advantages


@pytest.mark.parametrize("error", [RuntimeError("ptxas: sm_999 is unknown"), FileNotFoundError("gcc"), None], ids=repr)
def test_a_kernel_that_does_not_compile_gives_way_to_the_closed_form_with_one_warning(monkeypatch, error):
    launch = mock.Mock(side_effect=error)
    warnings = []
    monkeypatch.setattr(module.logger, "warning", warnings.append)
    advantages = on_a_gpu(
        monkeypatch, error and SimpleNamespace(FUSED=["rloo"], fused_group_advantages=launch)
    )  # None: no Triton
    expected, expected_info = advantages(torch.Tensor)
    for _ in range(2):
        found, info = advantages()
        assert found.tolist() == expected.tolist() and not info["advantage_kernel"].any()
        assert info["group_reward_std"].tolist() == expected_info["group_reward_std"].tolist()
    (warning,) = warnings
    assert "the closed form does" in warning and (str(error) in warning if error else "ModuleNotFoundError" in warning)
    assert launch.call_count == (error is not None)  # it is not compiled again


def test_an_estimator_that_the_kernel_lacks_is_the_closed_forms(monkeypatch):
    """Nothing is warned of, and the kernel is there for others."""
    launch, warn = mock.Mock(), mock.Mock()
    monkeypatch.setattr(module.logger, "warning", warn)
    monkeypatch.setitem(ESTIMATORS, "toy", Estimator(lambda it: it.rewards_N + it.sizes_G[it.groups_N]))
    advantages = on_a_gpu(monkeypatch, SimpleNamespace(FUSED=["rloo"], fused_group_advantages=launch), "toy")
    found, info = advantages()
    assert found[:, 0].tolist() == [3.0, 3.0, 3.0] and not info["advantage_kernel"].any()  # clipped at 2, - 0.5, x 2
    assert not launch.called and not warn.called and not module._refused


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), ValueError("kl must be")], ids=repr)
def test_a_kernel_that_runs_is_used_and_neither_memory_nor_a_wrong_call_is_a_reason_to_leave_it(monkeypatch, error):
    made = torch.full((3, 2), 7.0), torch.ones(3)
    launch = mock.Mock(side_effect=[made, error, made])
    advantages = on_a_gpu(monkeypatch, SimpleNamespace(FUSED=["rloo"], fused_group_advantages=launch))
    assert advantages()[1]["advantage_kernel"].all()
    with pytest.raises(type(error)):
        advantages()
    assert (advantages()[0] == 7).all()

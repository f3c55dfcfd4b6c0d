import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from transformers import get_scheduler

from openrlhf_sagc.advantages import group_advantages
from openrlhf_sagc.experience import GROUP_SIZE, GroupExperienceMaker, follow_schedule, group_sizes_of
from openrlhf_sagc.measurements import Rollouts, rollout_metrics

ROOT = Path(__file__).parents[2]


def run_script(tree: str, script: str) -> str:
    """The last line that `script` prints with the OpenRLHF of build/TREE."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / tree)}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1]


def experience_maker(cls, estimator="group_norm", n_samples_per_prompt=8):
    maker = cls.__new__(cls)
    reward = SimpleNamespace(clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None)
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    maker.args = SimpleNamespace(
        reward=reward,
        algo=SimpleNamespace(advantage=advantage),
        rollout=SimpleNamespace(n_samples_per_prompt=n_samples_per_prompt, max_new_tokens=64),
    )
    maker.strategy = SimpleNamespace(args=maker.args)
    maker.advantage_estimator = estimator
    return maker


def experiences_of(rewards: torch.Tensor, order: list[int], batch: int) -> list[Experience]:
    return [
        Experience(index=order[i : i + batch], rewards=rewards[order[i : i + batch]], info={})
        for i in range(0, len(order), batch)
    ]


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo", "reinforce_baseline"])
def test_ragged_groups_are_shaped_in_place_after_length_balancing(estimator):
    torch.manual_seed(0)
    sizes = [4, 8, 4, 2]
    rewards = torch.rand(sum(sizes))
    order = torch.randperm(len(rewards)).tolist()
    maker = experience_maker(GroupExperienceMaker, estimator)
    maker._group_sizes = sizes
    experiences = experiences_of(rewards, order, batch=5)
    shaped = torch.cat(maker.shape_rewards(experiences))
    expected = group_advantages(rewards, sizes, estimator)
    assert torch.equal(shaped, expected[order])
    stds = torch.cat([experience.info["group_reward_std"] for experience in experiences])
    assert torch.equal(stds, torch.cat([g.std().expand(len(g)) for g in rewards.split(sizes)])[order])


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo", "rloo", "reinforce_baseline"])
def test_equal_groups_match_upstream(estimator):
    torch.manual_seed(1)
    rewards = torch.rand(32)
    shaped = []
    for cls in (RemoteExperienceMaker, GroupExperienceMaker):
        maker = experience_maker(cls, estimator)
        maker._group_sizes = [8] * 4
        shaped.append(torch.cat(maker.shape_rewards(experiences_of(rewards, list(range(32)), batch=8))))
    torch.testing.assert_close(shaped[1], shaped[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tree, worst", [("cpu-base", 10.0), ("cpu-patched", 0.0)])
def test_patch_zeroes_the_advantages_of_constant_groups(tree, worst):
    """Patch 1: rewards of 0.9 have no signal; unpatched OpenRLHF gives each -59.6, which the clip range cuts to -10."""
    script = (
        "import sys; sys.path.insert(0, 'tests/unit'); from test_experiences import *\n"
        "maker = experience_maker(RemoteExperienceMaker)\n"
        "experiences = experiences_of(torch.full((32,), 0.9), list(range(32)), 32)\n"
        "maker.kl_ctl = SimpleNamespace(value=0.0)\n"
        "experiences[0].action_mask = torch.ones(32, 3); experiences[0].kl = torch.zeros(32, 3)\n"
        "advantages = maker.compute_advantages_and_returns(experiences)[0].advantages\n"
        "print(advantages.abs().max().item())"
    )
    assert float(run_script(tree, script)) == pytest.approx(worst, abs=0.05)


@pytest.mark.parametrize("tree, orders", [("cpu-base", 2), ("cpu-patched", 1)])
def test_patch_makes_the_order_of_prompts_follow_the_seed(tree, orders):
    """Patch 2: unpatched OpenRLHF shuffles the prompts anew in every process, whatever the seed."""
    script = (
        "from openrlhf.utils.deepspeed import DeepspeedStrategy\n"
        "strategy = DeepspeedStrategy.__new__(DeepspeedStrategy); strategy.seed = 42\n"
        "print(list(strategy.setup_dataloader(list(range(48)), 1, shuffle=True, collate_fn=lambda rows: rows[0])))"
    )
    assert len({run_script(tree, script) for _ in range(2)}) == orders


def test_recorded_rollouts_give_the_same_bits_with_and_without_the_patches():
    outputs = []
    for tree in ("cpu-base", "cpu-patched"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / tree)}
        command = [sys.executable, ROOT / "tests/data/shape_rollouts.py", ROOT / "tests/data/rollouts.json"]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        outputs.append(dict(line.split() for line in output.splitlines() if len(line.split()) == 2))
    assert len(set(outputs[0].values())) >= 5  # the estimators do differ
    assert outputs[0] == outputs[1]


def sample(size, prompt):
    return Experience(prompts=[prompt], info={GROUP_SIZE: size})


def test_group_sizes_are_read_off_whole_groups():
    assert group_sizes_of([sample(2, "a")] * 2 + [sample(3, "b")] * 3 + [sample(2, "b")] * 2) == [2, 3, 2]
    assert group_sizes_of([]) == []


@pytest.mark.parametrize(
    "samples",
    [
        [sample(2, "a")] * 3,
        [sample(3, "a")] * 2,
        [sample(2, "a"), sample(2, "b")],
        [sample(2, "a"), sample(3, "a")] + [sample(3, "a")] * 2,
    ],
    ids=["one left over", "one missing", "two prompts", "two sizes"],
)
def test_a_cut_group_is_an_error(samples):
    with pytest.raises(ValueError, match="not one whole group"):
        group_sizes_of(samples)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup"])
def test_learning_rate_follows_the_share_of_prompts_used(schedule):
    """Steps of 3, 1 and 4 of 16 prompts: each has the rate that the schedule gives at the prompts before it."""
    model_actor = SimpleNamespace(max_steps=16)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    model_actor.actor_scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=2, num_training_steps=16)
    expected = [model_actor.actor_scheduler.lr_lambdas[0](prompts) for prompts in (0, 3, 4, 8)]
    rates = []
    for prompts in (0, 3, 4, 8):
        follow_schedule(model_actor, prompts / 16)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        model_actor.actor_scheduler.step()  # as DeepSpeed does after each optimizer step
    assert rates == pytest.approx(expected)


def test_rollout_metrics_are_over_all_rollouts():
    groups = [Rollouts(tokens, [2.0] * 4, [0.5] * 4) for tokens in ([10, 10, 10, 40], [20, 20, 20, 30])]
    metrics = rollout_metrics(groups, longest=50)
    assert metrics["rollout/response_length_median"] == 20
    assert metrics["rollout/response_length_max"] == 40
    assert metrics["rollout/idle_fraction"] == pytest.approx(1 - 20 / 40)
    assert metrics["sagc/length_headroom"] == 50 / 20
    assert (metrics["rollout/seconds_median"], metrics["rollout/queue_seconds"]) == (2.0, 0.5)

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from transformers import get_scheduler

from openrlhf_sagc.actor import SAMPLE, follow_schedule, keep_number_of_steps
from openrlhf_sagc.advantages import GROUP_ESTIMATORS, group_advantages
from openrlhf_sagc.experience import GROUP_SIZE, GroupExperienceMaker, group_sizes_of
from openrlhf_sagc.measurements import Rollouts, rollout_metrics, rollouts_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_script(run_in_tree):
    """run_script(tree, script): the last line that the script prints with the OpenRLHF of build/TREE."""
    return lambda tree, script: run_in_tree(tree, "-c", script).splitlines()[-1]


def experience_maker(cls, estimator="group_norm", kl_coef=0.0, group_sizes=(8,) * 4, clip_range=(-10, 10)):
    maker = cls.__new__(cls)
    reward = SimpleNamespace(clip_range=clip_range, overlong_buffer_len=None, stop_properly_penalty_coef=None)
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    maker.args = SimpleNamespace(
        reward=reward,
        algo=SimpleNamespace(advantage=advantage, kl=SimpleNamespace(use_loss=False)),
        rollout=SimpleNamespace(n_samples_per_prompt=group_sizes[0], max_new_tokens=64),
    )
    maker.strategy = SimpleNamespace(args=maker.args)
    maker.advantage_estimator = estimator
    maker.initial_model_group = object() if kl_coef else None
    maker.kl_ctl = SimpleNamespace(value=kl_coef)
    maker._group_sizes = list(group_sizes)
    return maker


def experiences_of(rewards: torch.Tensor, order: list[int], batch: int) -> list[Experience]:
    """Micro-batches of samples in `order`: multi-turn masks with holes, one row without an action, KL on actions."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.randint(0, 2, (len(rewards), 20), generator=generator)
    mask[5] = 0
    kl = torch.randn(mask.shape, generator=generator) * mask
    picks = [order[i : i + batch] for i in range(0, len(order), batch)]
    return [
        Experience(index=pick, rewards=rewards[pick], action_mask=mask[pick], kl=kl[pick], info={}) for pick in picks
    ]


def by_sample(batches: list[Experience], field: str) -> dict[int, torch.Tensor]:
    rows = {}
    for batch in batches:
        values = batch.advantages * batch.action_mask if field == "advantages" else batch.info[field]
        rows.update(zip(batch.index, values))
    return rows


ESTIMATORS = ["group_norm", "dr_grpo", "rloo", "reinforce_baseline"]


@pytest.mark.parametrize("balanced", [False, True], ids=["", "dynamic batches"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_actors_train_on_the_advantages_that_openrlhf_builds_in_the_driver(
    train_batches, estimator, kl_coef, balanced
):
    """Groups of one size, shuffled by length balancing and again by training; the metrics of a sample as well."""
    torch.manual_seed(1)
    rewards, order = torch.rand(32), torch.randperm(32).tolist()
    theirs = experience_maker(RemoteExperienceMaker, estimator, kl_coef)
    expected = theirs.compute_advantages_and_returns(experiences_of(rewards, order, batch=5))
    ours = experience_maker(GroupExperienceMaker, estimator, kl_coef)
    made = train_batches(ours, experiences_of(rewards, order, batch=5), micro_batch=6, balanced=balanced)
    for field in ("advantages", "return", "group_reward_std"):
        ours, theirs = by_sample(made, field), by_sample(expected, field)
        assert ours.keys() == theirs.keys() == set(range(32))
        for sample, row in ours.items():
            torch.testing.assert_close(row, theirs[sample], rtol=1e-5, atol=1e-5)
    assert all(batch.info["advantage_kernel"].eq(0).all() for batch in made)  # the closed form, on a CPU


@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_ragged_groups_reach_the_actors(train_batches, estimator):
    torch.manual_seed(0)
    sizes = [4, 8, 1, 4, 2]
    rewards = torch.rand(sum(sizes))
    maker = experience_maker(GroupExperienceMaker, estimator, group_sizes=sizes, clip_range=(-0.4, 0.9))
    maker.args.algo.advantage.no_std_norm = True
    batches = train_batches(maker, experiences_of(rewards, torch.randperm(len(rewards)).tolist(), 5), micro_batch=4)
    expected = group_advantages(rewards, sizes, estimator).clamp(-0.4, 0.9)
    if estimator == "reinforce_baseline":
        rows = torch.cat([expected[batch.index].unsqueeze(1) * batch.action_mask for batch in batches])
        expected -= rows.sum() / sum(batch.action_mask.sum() for batch in batches)
    for batch in batches:
        torch.testing.assert_close(
            batch.advantages * batch.action_mask, expected[batch.index].unsqueeze(1) * batch.action_mask
        )
    stds = torch.cat(
        [group.std(correction=min(1, len(group) - 1)).expand(len(group)) for group in rewards.split(sizes)]
    )
    for sample, std in by_sample(batches, "group_reward_std").items():
        torch.testing.assert_close(std, stds[sample])


@pytest.mark.parametrize("kl_coef, fields", [(0.0, {"action_mask"}), (0.05, {"action_mask", "kl"})])
def test_nothing_of_a_tokens_size_is_sent_but_the_kl_of_the_reward(train_batches, kl_coef, fields):
    maker = experience_maker(GroupExperienceMaker, kl_coef=kl_coef)
    experiences = experiences_of(torch.rand(32), list(range(32)), batch=8)
    train_batches(maker, experiences, micro_batch=8)
    for experience in experiences:
        tensors = {name: value for name, value in vars(experience).items() if isinstance(value, torch.Tensor)}
        assert {name for name, value in tensors.items() if value.dim() == 2} - {
            "sequences",
            "attention_mask",
        } == fields
        assert all(value.shape == (8,) for value in experience.info.values())


def test_whitening_of_a_step_without_an_action_is_finite(train_batches):
    maker = experience_maker(GroupExperienceMaker, "reinforce_baseline")
    experiences = experiences_of(torch.rand(32), list(range(32)), batch=8)
    for experience in experiences:
        experience.action_mask.zero_()
    for batch in train_batches(maker, experiences, micro_batch=8):
        assert not batch.advantages.any()


def test_a_bad_reward_is_named_before_anything_is_sent(train_batches):
    maker = experience_maker(GroupExperienceMaker)
    rewards = torch.rand(32)
    rewards[17] = torch.nan
    experiences = experiences_of(rewards, list(range(32)), batch=8)
    with pytest.raises(ValueError, match="group 2 has a reward that is not finite: nan"):
        train_batches(maker, experiences, micro_batch=8)
    assert not any(SAMPLE in experience.info for experience in experiences)


@pytest.mark.parametrize("tree, worst", [("cpu-base", 10.0), ("cpu-patched", 0.0)])
def test_patch_zeroes_the_advantages_of_constant_groups(run_script, tree, worst):
    """Patch 1: rewards of 0.9 have no signal; unpatched OpenRLHF gives each -59.6, which the clip range cuts to -10."""
    script = (
        "import sys; sys.path.insert(0, 'tests/unit'); from test_experiences import *\n"
        "maker = experience_maker(RemoteExperienceMaker)\n"
        "experiences = experiences_of(torch.full((32,), 0.9), list(range(32)), 32)\n"
        "advantages = maker.compute_advantages_and_returns(experiences)[0].advantages\n"
        "print(advantages.abs().max().item())"
    )
    assert float(run_script(tree, script)) == pytest.approx(worst, abs=0.05)


@pytest.mark.parametrize("tree, orders", [("cpu-base", 2), ("cpu-patched", 1)])
def test_patch_makes_the_order_of_prompts_follow_the_seed(run_script, tree, orders):
    """Patch 2: unpatched OpenRLHF shuffles the prompts anew in every process, whatever the seed."""
    script = (
        "from openrlhf.utils.deepspeed import DeepspeedStrategy\n"
        "strategy = DeepspeedStrategy.__new__(DeepspeedStrategy); strategy.seed = 42\n"
        "print(list(strategy.setup_dataloader(list(range(48)), 1, shuffle=True, collate_fn=lambda rows: rows[0])))"
    )
    assert len({run_script(tree, script) for _ in range(2)}) == orders


def test_patch_sums_returns_to_the_same_bits(run_script):
    """Patch 10: on multi-turn masks with holes and rows without an action, the KL in the reward; gamma 1 and below."""
    script = (
        "import hashlib, torch\n"
        "from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker as Maker\n"
        "torch.manual_seed(0)\n"
        "rewards, mask = torch.randn(64, 2000), torch.rand(64, 2000).round().long()\n"
        "mask[::7] = 0\n"
        "made = [Maker.get_cumulative_returns(None, rewards, mask, gamma) for gamma in (1.0, 0.99)]\n"
        "print([(m.dtype, m.shape, m.stride(), hashlib.sha256(m.numpy().tobytes()).hexdigest()) for m in made])"
    )
    patched = run_script("cpu-patched", script)
    assert "torch.float32, torch.Size([64, 2000]), (2000, 1)" in patched
    assert patched == run_script("cpu-base", script)


def test_recorded_rollouts_give_the_same_bits_with_and_without_the_patches(run_in_tree):
    outputs = []
    for tree in ("cpu-base", "cpu-patched"):
        output = run_in_tree(tree, ROOT / "tests/data/shape_rollouts.py", ROOT / "tests/data/rollouts.json")
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


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic batches"])
@pytest.mark.parametrize("samples, times", [(32, 1), (64, 1), (65, 2), (128, 2), (256, 4)])
def test_larger_groups_are_trained_in_larger_optimizer_steps(dynamic, samples, times):
    """8 prompts x 8 samples in steps of 32 on two actors in micro-batches of 4: a step is 4 micro-batches on each."""
    sizes = []
    engine = SimpleNamespace(
        dp_world_size=2, train_micro_batch_size_per_gpu=lambda: 4, set_train_batch_size=sizes.append
    )
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=8, n_samples_per_prompt=8),
        train=SimpleNamespace(batch_size=32, micro_batch_size=4, dynamic_batch_enable=dynamic),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    strategy = SimpleNamespace(args=args, train_batch_size=32, accumulated_gradient=4)
    model_actor = SimpleNamespace(strategy=strategy, actor=SimpleNamespace(model=engine))
    for _ in range(2):
        keep_number_of_steps(model_actor, samples)
        if dynamic:
            assert args.train.batch_size == 32 * times and not sizes
        else:
            assert strategy.accumulated_gradient == 4 * times and sizes.pop() == 32 * times


def test_rollout_metrics_are_over_all_rollouts():
    tokens = [[10, 10, 10, 40], [20, 20, 20, 30]]
    groups = [Rollouts(tokens_G, [2.0] * 4, [0.5] * 4, [False] * 4) for tokens_G in tokens]
    metrics = rollout_metrics(groups, longest=50)
    assert metrics["rollout/response_length_median"] == 20
    assert metrics["rollout/response_length_max"] == 40
    assert metrics["rollout/idle_fraction"] == pytest.approx(1 - 20 / 40)
    assert metrics["sagc/length_headroom"] == 50 / 20
    assert (metrics["rollout/seconds_median"], metrics["rollout/queue_seconds"]) == (2.0, 0.5)


def test_a_failed_agents_rollout_has_no_length_yet():
    finished = {"tokens": 9, "seconds": 1.0, "queue_seconds": 0.0, "stopped": False, "action_ranges": [(1, 10)]}
    failed = {"tokens": 2, "seconds": 0.5, "queue_seconds": 0.0, "stopped": False}
    assert rollouts_of([finished, failed]) == ([9, 2], [1.0, 0.5], [0.0, 0.0], [False, True])


def test_stopped_rollouts_keep_slots_busy_but_have_no_length_yet():
    group = Rollouts([10, 10, 10, 50], [1.0, 1.0, 1.0, 9.0], [0.0] * 4, [False, False, False, True])
    metrics = rollout_metrics([group], longest=50)
    assert metrics["rollout/response_length_max"] == 10 and metrics["rollout/seconds_max"] == 1.0
    assert metrics["rollout/idle_fraction"] == pytest.approx(1 - 20 / 50)
    assert rollout_metrics([group._replace(stopped=[True] * 4)], longest=50) == {}

"""A reward a sample goes to the actors, and they make the advantages of tokens from it."""

from types import SimpleNamespace

import pytest
import torch
from experiences import experience_maker, experiences_of, model_groups, padded_batches_flags, samples_of
from flags import arguments_with
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

import openrlhf_sagc.driver.experience as driver_experience
from openrlhf_sagc.advantages import ESTIMATORS, group_advantages
from openrlhf_sagc.decisions.records import Group, Prompt
from openrlhf_sagc.driver.experience import (
    GroupExperienceMaker,
    GroupSample,
    deal,
    group_sizes_of,
    stamped,
)
from openrlhf_sagc.training.rollout_rewards import SAMPLE
from openrlhf_sagc.training.training import StepShare


def by_sample(batches: list[Experience], field: str) -> dict[int, torch.Tensor]:
    rows = {}
    for batch in batches:
        values = batch.advantages * batch.action_mask if field == "advantages" else batch.info[field]
        rows.update(zip(batch.index, values))
    return rows


@pytest.mark.parametrize("balanced", [False, True], ids=["", "dynamic batches"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if ESTIMATORS[name].in_openrlhf])
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


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_ragged_groups_reach_the_actors(train_batches, estimator):
    torch.manual_seed(0)
    sizes = [4, 8, 1, 4, 2]
    rewards = torch.rand(sum(sizes))
    maker = experience_maker(GroupExperienceMaker, estimator, group_sizes=sizes, clip_range=(-0.4, 0.9))
    maker.args.algo.advantage.no_std_norm = True
    batches = train_batches(maker, experiences_of(rewards, torch.randperm(len(rewards)).tolist(), 5), micro_batch=4)
    expected = group_advantages(rewards, sizes, estimator).clamp(-0.4, 0.9)
    if ESTIMATORS[estimator].whitens:
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


def test_actors_have_the_rewards_of_a_steps_earlier_buckets(monkeypatch):
    """A bucket's samples may be trained with a later one."""
    monkeypatch.setattr("openrlhf_sagc.driver.experience.ray.get", lambda results: results)
    maker, sent = experience_maker(GroupExperienceMaker), []
    maker.actor_model_group = SimpleNamespace(
        async_run_method=lambda name, function, step, rollout: sent.append((step, rollout))
    )
    steps = [StepShare(progress, 64) for progress in (0.0, 0.5)]
    for maker._step in (steps[0], steps[0], steps[1]):
        experiences = experiences_of(torch.rand(32), list(range(32)), batch=8)
        rewards_N = torch.cat([experience.rewards for experience in experiences])
        maker.compute_advantages_and_returns(experiences)
        first = 32 if len(sent) == 2 else 0
        places = torch.cat([experience.info[SAMPLE] for experience in experiences])
        assert places.tolist() == list(range(first, first + 32))
        assert sent[-1][0] is maker._step and torch.equal(sent[-1][1].rewards_N[places], rewards_N)
    assert [len(rollout.rewards_N) for _, rollout in sent] == [32, 64, 32]
    assert [rollout.offsets_G1.tolist() for _, rollout in sent][1] == [*range(0, 65, 8)]


def sample(size, group):
    return GroupSample(None, group=group, group_size=size, step=None)


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
    ids=["one left over", "one missing", "two groups", "two sizes"],
)
def test_a_cut_group_is_an_error(samples):
    with pytest.raises(ValueError, match="not one whole group"):
        group_sizes_of(samples)


@given(lengths=st.lists(st.integers(1, 100), min_size=8, max_size=80), ranks=st.sampled_from([1, 2, 3, 8]))
def test_ranks_get_as_many_samples_as_openrlhf_gives_them_and_about_as_many_tokens(lengths, ranks):
    order, count = deal(lengths, ranks), len(lengths)
    assert sorted(order) == list(range(count))
    parts = [order[count * rank // ranks : count * (rank + 1) // ranks] for rank in range(ranks)]
    for part in parts:
        assert [lengths[sample] for sample in part] == sorted((lengths[sample] for sample in part), reverse=True)
    tokens = [sum(lengths[sample] for sample in part) for part in parts]
    assert max(tokens) - min(tokens) <= 2 * max(lengths)


@pytest.mark.parametrize("samples, ranks, size", [(160, 8, 8), (40, 2, 8), (64, 2, 16), (13, 1, 4)])
def test_batches_are_those_of_openrlhf_with_every_sample_at_its_place(samples, ranks, size):
    """Every rank has as many samples as without sorting, or the ranks would make other optimizer steps."""
    maker = GroupExperienceMaker.__new__(GroupExperienceMaker)
    vars(maker).update(model_groups(ranks), tokenizer=SimpleNamespace(pad_token_id=0))
    flags = padded_batches_flags(ranks, size)
    parts = {}
    for order in ("length", "shuffled"):
        maker.args = arguments_with(flags | {"train.micro_batches": order})
        batches = maker.split_rollout_samples(samples_of([3 + i % 7 for i in range(samples)]))
        per_rank = len(batches) // ranks
        parts[order] = [
            sum(len(batch.index) for batch in batches[rank * per_rank : (rank + 1) * per_rank])
            for rank in range(ranks)
        ]
        for batch in batches:
            assert batch.total_length.tolist() == [3 + place % 7 for place in batch.index]
        assert sorted(place for batch in batches for place in batch.index) == list(range(samples))
    assert parts["length"] == parts["shuffled"]


def test_an_actor_that_could_not_take_the_rewards_ends_a_streamed_step_too(monkeypatch):
    """Its last part: the actors train nothing else meanwhile, and would train on the rewards of the bucket before."""
    maker = experience_maker(GroupExperienceMaker)
    maker.actor_model_group = SimpleNamespace(async_run_method=lambda *_: ["an actor's error"])
    made = lambda: experiences_of(torch.rand(32), list(range(32)), batch=8)  # noqa: E731
    theirs = lambda self, samples: self.compute_advantages_and_returns(made())  # noqa: E731
    monkeypatch.setattr(RemoteExperienceMaker, "make_experience_batch", theirs)
    fetched = []
    monkeypatch.setattr(driver_experience.ray, "get", fetched.append)
    groups = [Group(n, 0, Prompt("", "", None, 1), 8, 8, samples=[None] * 8) for n in range(4)]
    maker.make_experience_batch(stamped(groups, StepShare(0.0, 64, divisor=64.0)))
    assert fetched == [["an actor's error"]]
    maker.make_bucket(stamped(groups, StepShare(0.0, 64, divisor=64.0)))
    assert len(fetched) == 1  # the actors may still train


COLOCATED = {"algo.kl.use_loss": False, "train.colocate_all": False, "train.colocate_actor_ref": False}


def test_nobody_reads_a_token_in_the_driver_where_training_makes_the_log_probabilities(monkeypatch):
    """As OpenRLHF's forward pass of zeros leaves them, without any of it."""
    monkeypatch.setattr(driver_experience.ray, "get", lambda value: value)
    maker, sent = experience_maker(GroupExperienceMaker), []
    maker.args = maker.strategy.args = arguments_with(padded_batches_flags(2, 4) | COLOCATED)
    maker.args.reward = SimpleNamespace(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None)
    maker.tokenizer, maker.actors_make_old_log_probs = SimpleNamespace(pad_token_id=0), True
    vars(maker).update(model_groups(2))
    maker.actor_model_group.async_run_method = lambda *args: sent.append(args)
    makers = {"ours": GroupExperienceMaker.make_experience, "theirs": RemoteExperienceMaker.make_experience}
    made = {}
    for name, make in makers.items():
        monkeypatch.setattr(GroupExperienceMaker, "make_experience", make)
        made[name] = maker.make_experience_batch(samples_of([3 + i % 7 for i in range(32)], 8, StepShare(0.0, 32)))
    for ours, theirs in zip(*made.values(), strict=True):
        assert not {"sequences", "attention_mask", "action_mask"} & vars(ours).keys()
        assert {"sequences", "attention_mask", "action_mask"} <= vars(theirs).keys()
        assert ours.info.keys() == theirs.info.keys() >= {"kl", "logprobs_diff", "return", "reward"}
        for key, value in ours.info.items():
            assert value.dtype == theirs.info[key].dtype and torch.equal(value, theirs.info[key])
        assert (ours.action_log_probs, ours.kl, ours.values, ours.base_action_log_probs) == (None, None, None, None)
        assert (theirs.kl, theirs.values) == (None, None)

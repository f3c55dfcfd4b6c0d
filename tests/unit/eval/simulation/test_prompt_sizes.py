"""A group size for each prompt: the measure, the sizes, and the planner in simulated training."""

import itertools

import numpy as np
import pytest
from simulation.costs import CostModel
from simulation.prompt_sizes import (
    Learned,
    Oracle,
    SizesByPrompt,
    best_sizes,
    chance_of_signal,
    effective_samples,
    noise,
)
from simulation.training import SimulatedTraining
from simulation.workloads import Workload, WorkloadSource

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.records import Group, Prompt
from openrlhf_sagc.decisions.tail_batching import NoTailBatching

COSTS = CostModel(1.0, 0.0, 0.0, 0.0, 1000, 10**6, 1, *[0.0] * 6)  # a token a second


def estimates(rate, size, gradient_D, repetitions, generator):
    """Gradient estimates [repetitions, D] of groups whose scores have unit normal noise and this gradient."""
    right = (generator.random((repetitions, size, 1)) < rate).astype(float)
    scores = generator.standard_normal((repetitions, size, len(gradient_D)))
    scores += (right - rate) * gradient_D / (rate * (1 - rate))  # mean 0, and of right * score the gradient
    return ((right - right.mean(axis=1, keepdims=True)) * scores).sum(axis=1) / (size - 1)


@pytest.mark.parametrize("size", [2, 8, 32])
def test_equal_sizes_are_worth_samples_times_size_less_one_over_size(size):
    noise_P = np.array([0.25, 0.01, 0.2])
    samples = 3 * size
    assert effective_samples(noise_P, np.full(3, size)) == pytest.approx(samples * (size - 1) / size)


def test_prompts_without_noise_count_as_groups_and_need_no_samples():
    assert effective_samples(np.array([0.25, 0.0]), np.array([9, 2])) == pytest.approx(16)
    assert effective_samples(np.array([0.25, 0.25]), np.array([3, 5])) == pytest.approx(2 * 2 / (1 / 2 + 1 / 4))
    assert effective_samples(np.zeros(2), np.array([4, 4])) == 0


@pytest.mark.parametrize("rate, size", [(0.5, 2), (0.2, 4), (0.05, 16)])
def test_a_groups_estimate_has_no_bias_and_the_variance_of_the_formula(rate, size):
    gradient_D = 0.3 * rate * (1 - rate) * np.ones(10)
    drawn = estimates(rate, size, gradient_D, 40_000, np.random.default_rng(0))
    error_D = drawn.std(axis=0) / 200
    assert np.all(abs(drawn.mean(axis=0) - gradient_D) < 5 * error_D)
    assert drawn.var(axis=0).sum() == pytest.approx(10 * rate * (1 - rate) / (size - 1), rel=0.1)


def test_a_step_is_worth_as_many_independent_samples_as_its_variance_says():
    rates_P, sizes_P = np.array([0.1, 0.5, 0.3]), np.array([4, 16, 8])
    generator = np.random.default_rng(0)
    groups = [estimates(rate, size, np.zeros(10), 20_000, generator) for rate, size in zip(rates_P, sizes_P)]
    variance = np.mean(groups, axis=0).var(axis=0).sum()
    independent = 10 * noise(rates_P).mean()  # variance of one response to an average prompt, the baseline known
    assert effective_samples(noise(rates_P), sizes_P) == pytest.approx(independent / variance, rel=0.05)


def test_chance_of_signal_is_that_of_right_and_wrong_responses():
    right = np.random.default_rng(0).random((20_000, 5)) < 0.1
    mixed = (right.any(axis=1) & ~right.all(axis=1)).mean()
    assert chance_of_signal(np.array([0.1]), np.array([5])) == pytest.approx(mixed, rel=0.05)


def test_sizes_less_one_follow_the_root_of_the_worth():
    assert best_sizes([1.0, 4.0, 16.0], 703, range(2, 1000)) == pytest.approx([101, 201, 401], abs=1)


def test_no_other_sizes_within_the_budget_are_better_where_it_is_used_up():
    generator, candidates, used_up = np.random.default_rng(0), (4, 8, 16, 32), 0
    for worth_P in generator.random((50, 4)) ** 3:
        sizes = best_sizes(worth_P.tolist(), 48)
        assert sum(sizes) <= 48
        variance = (worth_P / (np.array(sizes) - 1)).sum()
        others = [choice for choice in itertools.product(candidates, repeat=4) if sum(choice) <= 48]
        best = min((worth_P / (np.array(choice) - 1)).sum() for choice in others)
        assert variance < 1.25 * best
        used_up += variance < best + 1e-12
    assert used_up > 25


def test_a_budget_is_met_or_refused():
    assert best_sizes([1.0] * 3, 24) == [8, 8, 8]
    assert best_sizes([1.0] * 3, 1000) == [32, 32, 32]
    assert best_sizes([0.0, 1.0], 20) == [4, 16]
    with pytest.raises(ValueError, match="a budget of 11 samples does not give 3 prompts 4 each"):
        best_sizes([1.0] * 3, 11)


def seen(knowledge, text, scores, tokens):
    prompt = Prompt(text, 0, None, 1)
    knowledge.observe(Group(0, 0, prompt, len(scores), len(scores)), scores, [tokens] * len(scores))
    return prompt


def test_what_earlier_groups_showed_says_what_a_prompt_is_worth():
    knowledge, new = Learned(by_rate=True, by_length=False), Prompt("new", 0, None, 1)
    assert knowledge.worth([new]) == pytest.approx([1 / 6])  # of a uniform success rate
    mixed = seen(knowledge, "mixed", [1.0, 0.0] * 4, 100)
    wrong = seen(knowledge, "wrong", [0.0] * 8, 100)
    right = seen(knowledge, "right", [1.0] * 8, 100)
    worth_mixed, worth_new, worth_wrong, worth_right = knowledge.worth([mixed, new, wrong, right])
    assert worth_mixed > worth_new > max(worth_wrong, worth_right)
    for _ in range(6):
        seen(knowledge, "wrong", [1.0, 0.0] * 4, 100)
    assert knowledge.worth([wrong])[0] > 0.95 * knowledge.worth([mixed])[0]


def test_where_most_prompts_fail_a_new_one_is_expected_to():
    knowledge = Learned(by_rate=True, by_length=False)
    for number in range(100):
        seen(knowledge, str(number), [0.0] * 8, 100)
    assert knowledge.worth([Prompt("new", 0, None, 1)])[0] < 0.08


def test_long_prompts_are_worth_less_where_lengths_count():
    knowledge = Learned(by_rate=True, by_length=True)
    short, long = (seen(knowledge, text, [1.0, 0.0] * 16, tokens) for text, tokens in (("a", 100), ("b", 400)))
    assert np.divide(*knowledge.worth([short, long])) == pytest.approx(4, rel=0.1)
    lengths_alone = Learned(by_rate=False, by_length=True)
    wrong, mixed = seen(lengths_alone, "a", [0.0] * 8, 100), seen(lengths_alone, "b", [1.0, 0.0] * 4, 100)
    assert np.divide(*lengths_alone.worth([wrong, mixed])) == pytest.approx(1)


def simulated(knowledge_of, sampler):
    source = WorkloadSource(Workload(median=100, cap=800), seed=0)
    controller = StragglerAwareGroupController([8])
    planner = SizesByPrompt(
        controller, sampler, NoTailBatching(), knowledge=knowledge_of(source), samples=128, num_engines=2
    )
    return SimulatedTraining(planner, source, COSTS, gpus=2, prompt_tokens=10)


def test_a_step_trains_its_samples_in_groups_of_the_sizes_that_were_chosen():
    run = simulated(Oracle, DynamicSampler(tolerance=None))
    for _ in range(3):
        step = run.step()
        assert (step["samples"], step["prompts"], step["rollouts"]) == (128, 16, 128)
        sizes = [len(group.samples) for group in run.judged]
        assert sizes == [group.size for group in run.judged] and len(set(sizes)) > 1
        labels = [group.prompt.label for group in run.judged]
        worth_P = noise(run.source.success_rates(labels)) / run.source.mean_tokens(labels)
        assert sizes == best_sizes(worth_P.tolist(), 128)


def test_dynamic_sampling_leaves_a_step_about_as_many_samples():
    run = simulated(lambda source: Learned(by_rate=True, by_length=True), DynamicSampler(max_gen_batches=1000))
    steps = [run.step() for _ in range(30)]
    assert np.mean([step["samples"] for step in steps]) == pytest.approx(128, rel=0.1)
    dropped = [group for group in run.judged if not group.samples]
    assert dropped and len(run.judged) - len(dropped) == steps[-1]["prompts"]

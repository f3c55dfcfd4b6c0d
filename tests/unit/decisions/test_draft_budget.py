"""How many tokens are drafted in an iteration, on engines whose iterations cost what a test says."""

import random

import pytest

from openrlhf_sagc.decisions.draft_budget import DraftBudget


def seconds_of(budget, running, iterations, cost, accepted):
    """The milliseconds and tokens of these iterations: `cost(tokens verified)`, and this share of the drafted is right."""
    total = tokens = 0
    for _ in range(iterations):
        drafted = budget.choose(running)
        took, got = cost(running + drafted), running + accepted * drafted
        budget.note(got, took)
        total, tokens = total + took, tokens + got
    return total, tokens


def test_long_drafts_where_verifying_costs_nothing():
    budget = DraftBudget(8)
    seconds_of(budget, 4, 200, lambda verified: 10.0, 0.4)
    took, tokens = seconds_of(budget, 4, 1000, lambda verified: 10.0, 0.4)
    assert tokens / took > 0.98 * (4 + 0.4 * 32) / 10


@pytest.mark.parametrize("running", [1, 5, 48, 128])
def test_none_on_an_engine_that_computes_by_the_token(running):
    budget = DraftBudget(8)
    took, tokens = seconds_of(budget, running, 50, float, 0.2)
    assert took / tokens < (2 if running < 16 else 1.1)  # few requests never cost by the token
    took, tokens = seconds_of(budget, running, 1000, float, 0.2)
    assert took / tokens < 1.02


@pytest.mark.parametrize("seed", range(3))
def test_none_where_the_costs_of_iterations_vary(seed):
    chance, budget = random.Random(seed), DraftBudget(8)
    noisy = lambda verified: verified * chance.uniform(0.7, 1.3)  # noqa: E731
    seconds_of(budget, 256, 200, noisy, 0.0)
    took, tokens = seconds_of(budget, 256, 3000, noisy, 0.0)
    assert took / tokens < 1.025


def test_a_full_engine_and_its_tail_are_known_apart():
    roofline = lambda verified: 10 + max(verified - 200, 0) * 0.1  # noqa: E731
    budget = DraftBudget(8)
    for _ in range(20):
        seconds_of(budget, 180, 30, roofline, 0.1)
        seconds_of(budget, 3, 30, roofline, 0.1)
    full = [budget.choose(180) for _ in range(20)]
    assert max(full, key=full.count) < 64  # as much as is free
    tail = [budget.choose(3) for _ in range(20)]
    assert max(tail, key=tail.count) == 24


def test_what_pays_no_more_is_noticed():
    budget = DraftBudget(8)
    seconds_of(budget, 8, 200, lambda verified: 10.0, 0.5)
    seconds_of(budget, 8, 60, float, 0.0)
    chosen = [budget.choose(8) for _ in range(20)]
    assert max(chosen, key=chosen.count) == 0
    seconds_of(budget, 8, 4000, lambda verified: 10.0, 0.5)  # and again
    chosen = [budget.choose(8) for _ in range(20)]
    assert max(chosen, key=chosen.count) == 64


def test_a_pause_is_no_iteration():
    budget = DraftBudget(8)
    seconds_of(budget, 8, 200, lambda verified: 10.0, 0.5)
    for _ in range(2):
        budget.choose(8)
        budget.note(8, 1e6)
    seconds_of(budget, 8, 40, lambda verified: 10.0, 0.5)
    chosen = [budget.choose(8) for _ in range(20)]
    assert max(chosen, key=chosen.count) == 64


def test_a_note_before_any_choice_is_none():
    budget = DraftBudget(8)
    budget.note(8, 1.0)
    assert budget.choose(1) == 0

"""Made-up rollouts for the simulator."""

import numpy as np
import pytest
from lib.simulation.workloads import PROMPTS, Workload, WorkloadSource


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def test_every_epoch_has_each_prompt_once_in_a_new_order(generator):
    source = WorkloadSource(Workload(), seed=1)
    epochs = [source.draw_prompts(PROMPTS - 1, generator) + source.draw_prompts(1, generator) for _ in range(2)]
    assert all(sorted(epoch) == list(range(PROMPTS)) for epoch in epochs) and epochs[0] != epochs[1]
    over = source.draw_prompts(PROMPTS + 5, generator)
    assert sorted(over[:PROMPTS]) == list(range(PROMPTS)) and len(over) == PROMPTS + 5


def test_lengths_have_the_spread_between_and_within_prompts_and_the_cap(generator):
    source = WorkloadSource(Workload(median=500, between=0.9, within=0.4, cap=10**6), seed=1)
    tokens_BG, _ = source.draw_rollouts(list(range(PROMPTS)), 64, generator)
    logs_BG = np.log(tokens_BG)
    assert np.exp(np.median(logs_BG)) == pytest.approx(500, rel=0.1)
    assert logs_BG.mean(axis=1).std() == pytest.approx(0.9, rel=0.05)
    assert logs_BG.std(axis=1).mean() == pytest.approx(0.4, rel=0.05)
    capped, _ = WorkloadSource(Workload(median=500, cap=800), seed=1).draw_rollouts([0, 1, 2], 64, generator)
    assert capped.max() == 800 and capped.min() >= 1


@pytest.mark.parametrize("logit, rate", [(0.0, 0.5), (-4.0, 0.07)])
def test_success_rates_have_their_mean_and_differ_between_prompts(generator, logit, rate):
    source = WorkloadSource(Workload(logit=logit), seed=1)
    tokens_BG, correct_BG = source.draw_rollouts(list(range(PROMPTS)), 64, generator)
    assert correct_BG.mean() == pytest.approx(rate, abs=0.03)
    assert correct_BG.mean(axis=1).std() > rate / 2
    assert np.corrcoef(np.log(tokens_BG).mean(axis=1), correct_BG.mean(axis=1))[0, 1] < -0.2


def test_training_moves_the_success_rate(generator):
    source = WorkloadSource(Workload(logit=-3.0, drift=4.0), seed=1)
    rates = []
    for source.progress in (0.0, 0.5, 1.0):
        rates.append(source.draw_rollouts(list(range(PROMPTS)), 16, generator)[1].mean())
    assert rates[0] < rates[1] - 0.1 < rates[2] - 0.2


def test_rates_and_mean_lengths_are_those_of_the_rollouts(generator):
    source = WorkloadSource(Workload(median=2000, cap=4000, logit=-1.0, drift=2.0), seed=1)
    source.progress = 0.5
    prompts = list(range(50))
    tokens_BG, correct_BG = source.draw_rollouts(prompts, 4000, generator)
    assert source.success_rates(prompts) == pytest.approx(correct_BG.mean(axis=1), abs=0.04)
    assert source.expected_tokens(prompts) == pytest.approx(tokens_BG.mean(axis=1), rel=0.04)
    assert (tokens_BG == 4000).mean() > 0.05


def test_an_order_of_its_own_does_not_depend_on_other_draws(generator):
    sources = [WorkloadSource(Workload(), seed=1, order=np.random.default_rng(2)) for _ in range(2)]
    generator.random(1000)
    drawn = [source.draw_prompts(PROMPTS + 5, np.random.default_rng(seed)) for seed, source in enumerate(sources)]
    assert drawn[0] == drawn[1]

"""The methods of tail batching on histories that say nothing, simulated: they lose hardly anything against plain steps."""

import dataclasses
import random

import pytest
from lib.paths import ENGINES
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.epochs import Epochs
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import train

ALIKE, UNLIKE = LogNormal(500, 0.0, 0.3, 4096), LogNormal(500, 1.2, 0.4, 4096)


def generation(method, lengths, gpus, change=lambda predictor: None, slots=128, prompts=192, steps=24):
    """Seconds of 24 steps of 16 prompts x 4, of which an episode has twelve."""
    costs = dataclasses.replace(CostModel.load(ENGINES / "h100-7b.json"), max_running=slots)
    settings = {
        "batch_size": 16,
        "n_samples_per_prompt": 4,
        "prompt_tokens": 256,
        "dynamic_sampling": False,
        "seed": 0,
    }
    run = train(
        parse_policy(f"fixed:4{method}"),
        gpus,
        Epochs(lengths, prompts, 4, seed=0),
        costs,
        default_arguments(**settings),
    )
    if run.planner.predictor:
        change(run.planner.predictor)
    return sum(run.step()["generation_seconds"] for _ in range(steps))


def misled(predictor):
    """What it expects of a prompt is wrong by up to ten times, always the same."""
    right = predictor._expected_log
    predictor._expected_log = lambda key: right(key) + random.Random(key).uniform(-2.3, 2.3)


@pytest.mark.parametrize("method", ["+tail:sort", "+tail"])
@pytest.mark.parametrize("gpus, slots", [(1, 8), (4, 128), (32, 128)])
def test_prompts_that_are_all_alike_cost_nothing(method, gpus, slots):
    """Where they queue, too: there short rounds would decode in vain."""
    assert generation(method, ALIKE, gpus, slots=slots) <= 1.05 * generation("", ALIKE, gpus, slots=slots)


@pytest.mark.parametrize("method", ["+tail:sort", "+tail"])
@pytest.mark.parametrize("gpus", [1, 4, 32])
def test_a_predictor_that_is_wrong_by_ten_times_costs_hardly_anything(method, gpus):
    assert generation(method, UNLIKE, gpus, misled) <= 1.05 * generation("", UNLIKE, gpus)


def test_fewer_prompts_than_a_step_fill_it_from_the_next_episode():
    for method in ("+tail:sort", "+tail:stop", "+tail"):
        assert generation(method, UNLIKE, 4, prompts=5, steps=6) > 0

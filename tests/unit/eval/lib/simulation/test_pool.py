"""A simulated pool: long prompts hold up no step until they would be too old, and are trained like the others."""

import numpy as np
import pytest
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import train
from lib.simulation.work import Work

KINDS, STEPS = ("fixed", "pool"), 60
LENGTHS = LogNormal.parse("lognormal:median=20,between=1.0,within=0.5,cap=400")
# An iteration takes a second whatever runs beside it, and training so long a step.
TRAINING = 30.0
COSTS = CostModel(1.0, 0.0, 0.0, 0.0, 1000, 10**6, 1, 0.0, 0.0, 0.0, TRAINING, 0.0, 0.0)


def simulated(word, work=Work(actor_gpus=1), **settings):
    usual = {"batch_size": 8, "n_samples_per_prompt": 4, "prompt_tokens": 3, "dynamic_sampling": False, "seed": 0}
    return train(parse_policy(word, KINDS), 3, LENGTHS, COSTS, default_arguments(**usual | settings), work)


def figures(run):
    steps = [run.step() for _ in range(STEPS)]
    return {name: np.mean([step[name] for step in steps[5:]]) for name in steps[0]}


def test_steps_take_what_the_actors_take_and_nothing_is_lost():
    pool, plain = figures(simulated("pool:4")), figures(simulated("fixed:4"))
    assert TRAINING <= pool["seconds"] < 0.5 * plain["seconds"]
    assert pool["seconds"] == pytest.approx(pool["generation_seconds"] + TRAINING)
    assert pool["tokens_mean"] == pytest.approx(plain["tokens_mean"], rel=0.1) and not pool["wasted_tokens"]


def test_a_smaller_age_waits_for_long_groups():
    assert (
        figures(simulated("pool:2", max_age=1))["seconds"] > 1.1 * figures(simulated("pool:2", max_age=6))["seconds"]
    )


@pytest.mark.parametrize(
    "word, settings, line",
    [
        (
            "pool:2",
            {"work": Work()},
            "--policies pool:2: engines and actors need GPUs of their own: give --actor_gpus",
        ),
        ("pool:3", {"max_age": 1}, "use pool:2 or less, or --max_age 2"),
    ],
)
def test_what_a_pool_needs_is_a_line(word, settings, line):
    with pytest.raises(ValueError, match=line):
        simulated(word, **settings)


@pytest.mark.parametrize("word", ["pool", "pool:0", "pool:2+tail", "pool:2+filter"])
def test_a_pool_is_its_size_alone(word):
    with pytest.raises(ValueError, match="use fixed:N or pool:R"):
        parse_policy(word, KINDS)

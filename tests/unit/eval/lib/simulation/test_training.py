"""Simulated training, against the scheduler of training and against formulas."""

import numpy as np
import pandas as pd
import pytest
from cpu_stack import ROOT
from lib.simulation.costs import CostModel
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import summary
from lib.simulation.training import SimulatedTraining

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.sorted_steps import SortedSteps
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

SURPLUS = {"rollout__tail_batching__method": "stop", "rollout__tail_batching__response_ratio": 1.25}
# A token of every rollout takes a second, whatever runs beside it.
ONE_TOKEN_A_SECOND = CostModel(1.0, 0.0, 0.0, 0.0, 1000, 10**6, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class Prompts:
    """A source of prompts 0, 1, ... in order, with respond(prompt, size) -> [(tokens, score), ...]."""

    def __init__(self, respond):
        self.respond, self.drawn, self.new = respond, [], 0

    def draw_prompts(self, count, generator):
        self.new += count
        return list(range(self.new - count, self.new))

    def draw_rollouts(self, prompts_B, size, generator):
        self.drawn += prompts_B
        groups = np.array([self.respond(prompt, size) for prompt in prompts_B])
        return groups[:, :, 0].astype(int), groups[:, :, 1]

    def expected_tokens(self, prompts_B):
        return np.array([np.mean([tokens for tokens, _ in self.respond(prompt, 8)]) for prompt in prompts_B])


def simulated(source, controller, sampler, costs=ONE_TOKEN_A_SECOND, *, gpus=1, seed=0, batcher=None, **settings):
    settings = {"hold": "samples", "samples": 16, "prompts": 4, "signal": "tokens"} | settings
    predictor = settings.pop("predictor", None)
    planner = StepPlanner(controller, sampler, batcher or NoTailBatching(), predictor, num_engines=gpus, **settings)
    return SimulatedTraining(planner, source, costs, gpus=gpus, prompt_tokens=3, seed=seed)


def responses(seed):
    """respond(prompt, size) -> random lengths, a tenth of them long, and scores."""

    def respond(prompt, size):
        random = np.random.default_rng([seed, prompt])
        tokens = random.integers(5, 12, size) * np.where(random.random(size) < 0.1, 5, 1)
        return list(zip(tokens.tolist(), (random.random(size) < 0.3).astype(float).tolist()))

    return respond


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tail, steps", [(False, 12), (True, 1)])  # the order in which groups are stopped is free
def test_steps_that_place_rollouts_are_those_of_training(make_generator, tail, steps, seed):
    """On three engines: the same prompts and clock, where the first rollouts to finish stop the others on all engines."""
    respond = responses(seed)
    flags = {"rollout__tail_batching__enable": tail, "rollout__length_aware_dispatch": True, **SURPLUS}
    trained = make_generator(2000, respond, hold="samples", engines=3, **flags)
    trained.ray.at_once = True
    controller, source = StragglerAwareGroupController([4, 8], initial_group_size=4), Prompts(respond)
    settings = {
        "batcher": TailBatcher(response_ratio=1.25) if tail else None,
        "gpus": 3,
        "predictor": LengthPredictor(),
    }
    run = simulated(source, controller, DynamicSampler(tolerance=None), **settings)
    for _ in range(steps):
        trained.generate_samples()
        step = run.step()
        assert source.drawn == trained.drawn and run.cluster.now == trained.ray.clock
        assert step["straggler_rate"] == trained.metrics["sagc/straggler_rate"]
        assert step["tokens_max"] == trained.metrics["rollout/response_length_max"]
    assert bool(trained.ray.stops) == tail


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hold", ["samples", "prompts"])
@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("tail", [False, True])
def test_steps_are_those_of_the_scheduler_of_training(make_generator, tail, filtering, hold, seed):
    """openrlhf_sagc/driver/rollout.py on engines that decode a token a tick: same prompts, sizes, rounds, stops and clock."""
    respond = responses(seed)
    trained = make_generator(
        2000, respond, filtering=filtering, hold=hold, rollout__tail_batching__enable=tail, **SURPLUS
    )
    trained.ray.at_once = True
    source = Prompts(respond)
    controller = StragglerAwareGroupController([4, 8], initial_group_size=4)
    sampler, batcher = DynamicSampler(tolerance=1e-6 if filtering else None), (
        TailBatcher(response_ratio=1.25) if tail else None
    )
    run = simulated(source, controller, sampler, hold=hold, batcher=batcher)
    sizes, rounds = set(), set()
    for _ in range(12):
        samples = trained.generate_samples()[0]
        step = run.step()
        metrics = trained.metrics
        sizes.add(step["group_size"])
        assert source.drawn == trained.drawn
        assert run.cluster.now == trained.ray.clock
        assert (step["samples"], step["group_size"]) == (len(samples), metrics["sagc/group_size"])
        assert step["dispatched"] == metrics["dynamic_filtering/dispatched"]
        assert step["straggler_rate"] == metrics["sagc/straggler_rate"]
        assert step["tokens_max"] == metrics["rollout/response_length_max"]
        assert run.planner.controller.state_dict() == trained.planner.controller.state_dict()
        assert run.planner.sampler.state_dict() == trained.planner.sampler.state_dict()
        if tail:
            assert run.planner.batcher.metrics() == trained.planner.batcher.metrics()
            rounds.add(step["long_round"])
    assert sizes == {4, 8} and rounds == ({0, 1} if tail else set())


def test_decisions_are_those_of_a_controller_fed_the_same_groups():
    """And do not depend on the engines, where lengths are tokens and no group is stopped."""
    source, sizes, samples = LogNormal(100, 0.5, 0.8, 2000), (4, 8, 16), 64
    alone, generator, expected = StragglerAwareGroupController(sizes), np.random.default_rng(5), []
    for _ in range(40):
        expected.append(alone.group_size)
        prompts = source.draw_prompts(samples // alone.group_size, generator)
        alone.observe(source.draw_rollouts(prompts, alone.group_size, generator)[0].tolist())
    assert len(set(expected)) > 1
    for gpus, costs in ((1, ONE_TOKEN_A_SECOND), (7, CostModel.load(ROOT / "eval/engines/h100-7b.json"))):
        controller = StragglerAwareGroupController(sizes)
        run = simulated(source, controller, DynamicSampler(tolerance=None), costs, gpus=gpus, samples=samples, seed=5)
        assert [run.step()["group_size"] for _ in range(40)] == expected


def test_figures_of_a_step():
    """Two groups of four on two engines of one slot a second; costs a token and GPU."""
    lengths = {0: [1, 2, 3, 4], 1: [10, 10, 10, 40]}
    costs = CostModel(1.0, 0.0, 0.0, 0.0, 4, 1000, 1, 0.5, 0.25, 0.01, 0.125, 0.02, 2.0)
    source = Prompts(lambda prompt, size: [(tokens, 0.0) for tokens in lengths[prompt]])
    step = simulated(
        source, StragglerAwareGroupController([4]), DynamicSampler(tolerance=None), costs, gpus=2, samples=8
    ).step()
    fullest = 43 + 6 + 4  # tokens of a rank, with prompts of 3; the other has 51
    assert step["generation_seconds"] == 0.5 + 40 and step["sync_seconds"] == 2
    assert step["experience_seconds"] == pytest.approx(0.25 + 0.01 * fullest)
    assert step["train_seconds"] == pytest.approx(0.125 + 0.02 * fullest)
    assert step["seconds"] == pytest.approx(sum(value for name, value in step.items() if name.endswith("_seconds")))
    assert step["idle_fraction"] == pytest.approx(1 - 80 / 8 / 40)
    assert (step["straggler_rate"], step["tokens_max"], step["rollouts"], step["dispatched"]) == (0.5, 40, 8, 2)


def test_seconds_leave_out_the_wait_for_a_slot():
    costs = CostModel(1.0, 0.0, 0.0, 0.0, 1, 1000, 1, *[0.0] * 6)
    seen = []
    controller = StragglerAwareGroupController([4])
    controller.observe = lambda groups, **_: seen.append(groups)
    source = Prompts(lambda prompt, size: [(10, 0.0)] * 4)
    run = simulated(source, controller, DynamicSampler(tolerance=None), costs, samples=4, signal="seconds")
    step = run.step()
    assert seen == [[[10.0] * 4]] and step["generation_seconds"] == 40


def test_a_step_that_cannot_be_filled_ends_the_run():
    source = Prompts(lambda prompt, size: [(10, 1.0)] * size)
    run = simulated(source, StragglerAwareGroupController([4]), DynamicSampler(max_gen_batches=2))
    with pytest.raises(RuntimeError, match=r"8 prompts of 4 samples gave 0 of the 4 groups .*dropped: 8 all right"):
        run.step()


def test_sorted_steps_waste_no_token_and_train_what_plain_steps_train():
    """Prompts of 10 to 70 tokens; wasted tokens and trained lengths are what the rounds make of them."""

    def row(batcher):
        run = simulated(
            Prompts(lambda prompt, size: [(10 + 10 * (prompt % 7) + place, place % 2) for place in range(size)]),
            StragglerAwareGroupController([4]),
            DynamicSampler(tolerance=None),
            batcher=batcher,
            predictor=LengthPredictor(),
        )
        return summary(pd.DataFrame(run.step() for _ in range(40)))

    sorted_steps, rounds = row(SortedSteps()), row(TailBatcher())
    assert sorted_steps["wasted_share"] == 0 and sorted_steps["sorted_round"] == 1
    assert 0.05 < rounds["wasted_share"] < 0.5 and rounds["sorted_round"] == 0 < rounds["long_round"]
    assert sorted_steps["trained_length_ratio"] == pytest.approx(rounds["trained_length_ratio"], rel=0.1)

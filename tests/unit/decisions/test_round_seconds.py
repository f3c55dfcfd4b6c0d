"""What steps are forecast to take, against the simulator's."""

import dataclasses
import json
from functools import cache
from types import SimpleNamespace

import pytest
from lib.paths import ENGINES
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.epochs import Epochs
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import train

from openrlhf_sagc.decisions.records import Group, Prompt, Rollout, Round
from openrlhf_sagc.decisions.round_seconds import POOL, RATIO, RoundSeconds
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

LENGTHS = LogNormal(500, 1.2, 0.4, 4096)
PROMPTS, SIZE, STEPS = 32, 4, 12  # of a step; of an episode


@cache
def watched(method, gpus, lengths=LENGTHS, slots=128, steps=STEPS):
    """What has learned from steps of this method, and their mean seconds."""
    costs = dataclasses.replace(CostModel.load(ENGINES / "h100-7b.json"), max_running=slots, generation_base=0.0)
    settings = {"batch_size": PROMPTS, "n_samples_per_prompt": SIZE, "prompt_tokens": 16, "dynamic_sampling": False}
    source = Epochs(lengths, STEPS * PROMPTS, SIZE, seed=0)
    run = train(parse_policy("fixed:4+tail:sort"), gpus, source, costs, default_arguments(**settings, seed=0))
    if method != "sort":
        run.planner.batcher = NoTailBatching() if method == "plain" else TailBatcher(prompt_ratio=RATIO, pool=POOL)
    learner, finish = RoundSeconds(gpus), run.planner.finish

    def observed(step):
        learner.observe(step)
        finish(step)

    run.planner.finish = observed
    seconds = [run.step()["generation_seconds"] for _ in range(steps)]
    return learner, seconds, run.planner.predictor.explained


@pytest.mark.parametrize("gpus, slots", [(1, 128), (1, 32), (16, 128)])
def test_plain_steps_take_what_they_are_forecast_to(gpus, slots):
    learner, seconds, _ = watched("plain", gpus, slots=slots)
    assert learner.queues == (slots == 32)
    assert learner.forecast(PROMPTS, SIZE, 1.0, 0.0).plain == pytest.approx(sum(seconds) / STEPS, rel=0.15)


@pytest.mark.parametrize("gpus", [4, 16])
def test_rounds_and_sorted_steps_are_forecast_from_plain_ones(gpus):
    learner, plain, _ = watched("plain", gpus)
    _, rounds, _ = watched("rounds", gpus, steps=2 * STEPS)
    _, sorted_steps, explained = watched("sort", gpus, steps=2 * STEPS)
    found = learner.forecast(PROMPTS, SIZE, 1.0, explained)
    assert found.stop == pytest.approx(sum(rounds) / (2 * STEPS), rel=0.25)
    assert found.sort == pytest.approx(sum(sorted_steps[STEPS:]) / STEPS, rel=0.25)
    assert found.sort < 0.8 * found.plain and found.stop < found.plain


def test_plain_steps_are_forecast_from_rounds_and_sorted_ones():
    _, plain, _ = watched("plain", 16)
    for method in ("rounds", "sort"):
        learner, _, _ = watched(method, 16, steps=2 * STEPS)
        assert learner.forecast(PROMPTS, SIZE, 1.0, 0.0).plain == pytest.approx(sum(plain) / STEPS, rel=0.25)


def test_without_a_history_sorting_does_nothing():
    learner, _, _ = watched("plain", 4)
    for explained in (-3.0, 0.0, 0.1):
        found = learner.forecast(PROMPTS, SIZE, 1.0, explained)
        assert found.sort == found.plain
    assert learner.forecast(PROMPTS, SIZE, 1.0, 0.5).sort > learner.forecast(PROMPTS, SIZE, 1.0, 0.95).sort


def test_prompts_that_are_all_alike_gain_nothing():
    learner, _, _ = watched("plain", 1, LogNormal(500, 0.0, 0.3, 4096), slots=32)
    found = learner.forecast(PROMPTS, SIZE, 1.0, 0.9)
    assert found.sort > 0.95 * found.plain and found.stop > 0.95 * found.plain


def test_dynamic_sampling_asks_for_more_and_sorted_steps_of_long_prompts_wait_once_more():
    """If long ones are seldom kept: then their steps ask again when all of them are over."""
    learner, _, _ = watched("plain", 16)
    alone, filtered = (learner.forecast(PROMPTS, SIZE, rate, 0.95) for rate in (1.0, 0.5))
    assert filtered.plain > alone.plain
    other = RoundSeconds(16)
    other.load_state_dict(learner.state_dict())
    seen = other._groups._seen
    for key, group in seen.items():
        seen[key] = group._replace(kept=sum(group.tokens) < SIZE * LENGTHS.median)
    assert other.forecast(PROMPTS, SIZE, 0.5, 0.95).sort > 1.2 * filtered.sort


def test_a_resumed_run_forecasts_the_same():
    learner, _, _ = watched("rounds", 4, steps=3)
    other = RoundSeconds(4)
    assert other.forecast(PROMPTS, SIZE, 1.0, 0.0) is None and not other.queues
    other.load_state_dict(json.loads(json.dumps(learner.state_dict())))
    assert other.forecast(PROMPTS, SIZE, 0.8, 0.9) == learner.forecast(PROMPTS, SIZE, 0.8, 0.9)
    assert other.is_guess == learner.is_guess


def test_only_a_group_that_was_stopped_has_longer_responses_than_were_seen():
    """Those of an agent that failed have ended, however short."""
    learner, prompt = RoundSeconds(1), Prompt("a", "b", None, 1)
    failed, stopped = (Rollout(3, 1.0, 0.0, False, stops, "no reward") for stops in (False, True))
    for last, whole in ((failed, True), (stopped, False)):
        ran = [(Group(1, 0, prompt, 2, 2), [Rollout(9, 2.0, 0.0, True, False, None), last])]
        step = SimpleNamespace(ran=ran, trained=[], unused=[], num_groups=1, round=Round(True, 1.0, 2))
        learner.observe(step)
        ((_, was_whole, _),) = learner.state_dict()["groups"]["groups"].values()
        assert was_whole == whole

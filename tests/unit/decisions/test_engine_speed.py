"""The speed of engines, from the rollouts of simulated ones."""

import dataclasses
import json

import numpy as np
import pytest
from lib.paths import ENGINES
from lib.simulation.cluster import Cluster
from lib.simulation.costs import CostModel
from lib.simulation.engine import Request

from openrlhf_sagc.decisions.engine_speed import EngineSpeed, Ran, Speed

COSTS = CostModel.load(ENGINES / "h100-7b.json")


def rolled_out(tokens, engines=1, prompt=1, **costs):
    """Rollouts of a step, which are dealt to simulated engines."""
    cluster = Cluster(dataclasses.replace(COSTS, **costs), engines)
    requests = [Request(prompt, int(count), engine=place % engines) for place, count in enumerate(tokens)]
    cluster.dispatch(requests)
    ended = 0
    while ended < len(requests):
        ended += len(cluster.ended())
    return [Ran(r.tokens, r.arrived, r.started, r.ended) for r in requests]


def lengths(count, seed=0):
    return np.exp(np.clip(np.random.default_rng(seed).normal(6, 1, count), 1, 9)).round()


def speed_of(*steps, engines=1):
    learner = EngineSpeed(engines)
    for step in steps:
        learner.observe(step)
    return learner.speed


@pytest.mark.parametrize("engines", [1, 4])
def test_the_costs_of_an_iteration_are_found(engines):
    speed = speed_of(*(rolled_out(lengths(100 * engines, seed), engines) for seed in range(3)), engines=engines)
    assert speed.base == pytest.approx(COSTS.decode_base, rel=0.1)
    assert speed.per_request == pytest.approx(COSTS.decode_per_request, rel=0.25)
    assert speed.per_held == pytest.approx(COSTS.decode_per_kv_token, rel=0.25)
    assert not speed.queues


def test_the_prefill_of_prompts_is_not_taken_for_decoding():
    speed = speed_of(rolled_out(lengths(100), prompt=1000))
    assert speed.base == pytest.approx(COSTS.decode_base, rel=0.15)
    assert speed.per_held == pytest.approx(COSTS.decode_per_kv_token, rel=0.5)


def test_what_a_rollout_takes_besides_its_decoding_is_known_and_forecast():
    """As with an agent that waits for a minute: rounds gain nothing of that."""
    waits = [ran._replace(ended=ran.ended + 60) for ran in rolled_out(lengths(100))]
    speed = speed_of(waits)
    assert 30 < speed.first < 75
    others = lengths(100, 2)
    ends = [ran.ended + 60 for ran in rolled_out(others)]
    assert speed.seconds(others[None])[0].max() == pytest.approx(max(ends), rel=0.15)
    assert speed.seconds(np.array([[1.0, 0.0]]))[0] == pytest.approx([speed.first, 0.0], abs=0.1)
    assert speed.alone(np.array([1.0])) == pytest.approx(speed.first, abs=0.1)


def test_rollouts_without_a_time_say_nothing():
    ran = rolled_out(lengths(50))
    odd = [Ran(5, 0.0, 0.0, np.inf), Ran(5, 3.0, 2.0, 4.0), Ran(5, 0.0, np.nan, 1.0), Ran(5, 0.0, 2.0, 1.0)]
    assert speed_of([*odd, *ran]) == speed_of(ran)


@pytest.mark.parametrize("count, queues", [(100, False), (400, True)])
def test_the_seconds_of_other_rollouts_follow(count, queues):
    """Within five per cent of the simulated engine's, with slots for all and for a third of them."""
    speed = speed_of(rolled_out(lengths(count)), rolled_out(lengths(count, 1)))
    assert speed.queues == queues
    others = lengths(count, 2)
    ends = [ran.ended for ran in rolled_out(others)]
    found = speed.seconds(others[None])[0]
    assert found.max() == pytest.approx(max(ends), rel=0.05)
    assert np.median(found) == pytest.approx(np.median(ends), rel=0.05)


def test_slots_are_told_from_room():
    slots = speed_of(rolled_out(lengths(400)))
    assert slots.slots == pytest.approx(COSTS.max_running, rel=0.05) and not np.isfinite(slots.room)
    room = speed_of(rolled_out(np.full(400, 1000) + lengths(400) / 10, kv_limit=60_000, max_running=300))
    assert room.room == pytest.approx(60_000, rel=1.0)  # rollouts that were preempted seem to hold theirs


def test_what_waited_for_a_slow_iteration_saw_no_limit():
    """It would leave few slots for ever, if what runs at once later did not say otherwise."""
    slow = [Ran(10, 0.0, 3.0, 4.0)] * 30 + [Ran(10, 0.0, 0.0, 3.5)] * 2
    assert speed_of(slow).queues is False
    few = [Ran(10, 0.0, 0.0, 3.0)] * 2 + [Ran(10, 0.0, 3.0, 6.0)] * 2
    assert speed_of(few).slots == 2 and not speed_of(few, rolled_out(lengths(50))).queues
    assert speed_of([Ran(5, 0.0, 2.0, 3.0)] * 4).queues is False  # none ran meanwhile


def test_longer_rollouts_need_more_of_the_room():
    speed = Speed(1.0, 0.0, 0.0, room=1000.0)
    assert speed.seconds(np.full((1, 10), 100.0)).max() == 100  # ten that hold 50 tokens each
    assert speed.seconds(np.full((1, 10), 400.0)).max() == 800  # five of them


def test_one_alone_takes_what_an_engine_takes_for_it():
    speed = Speed(2.0, 3.0, 4.0)
    assert speed.alone(np.array([5.0])) == pytest.approx(speed.seconds(np.array([[5.0]]))[0])


@pytest.mark.parametrize("slots", [2.0, np.inf])
def test_seconds_keep_the_order_in_which_rollouts_were_sent(slots):
    found = Speed(1.0, 0.0, 0.0, slots=slots).seconds(np.array([[30.0, 10.0, 20.0, 0.0]]))
    assert found.tolist() == [[30, 10, 20 if slots > 3 else 30, 0 if slots > 3 else 30]]


def test_nothing_is_known_before_a_rollout_that_decoded():
    assert speed_of([], [Ran(0, 0.0, 0.0, 0.0), Ran(3, 0.0, 1.0, 1.0)]) is None


def test_a_resumed_run_knows_the_same():
    learner, other = EngineSpeed(1), EngineSpeed(1)
    for step in (rolled_out(lengths(100)), rolled_out(lengths(400, 1))):
        other = EngineSpeed(1)
        learner.observe(step)
        other.load_state_dict(json.loads(json.dumps(learner.state_dict())))
        assert other.speed == learner.speed

"""The scheduler's pure parts as a whole: random policies, arrivals, drops, stops, failures, carried groups and resumes."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import EPISODES, Source, runs

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.in_flight import GroupsInFlight
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Round
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.tail_batching import TailBatcher


@given(runs())
@settings(max_examples=150)
def test_steps_are_full_and_nothing_is_lost_put_off_twice_or_trained_late(make):
    run, steps, put_off = make(), 0, Counter()
    prompts = {str(prompt) for prompt in range(run.source.count)}
    while run.queue.episode <= EPISODES:
        size = run.planner.controller.group_size
        found = run.step()
        if found is None:
            if run.flight:
                return  # the cap
        else:
            step, trained, unused = found
            assert (step.number, step.group_size, len(trained)) == (steps, size, step.num_groups)
            steps += 1
            for group in [*trained, *run.flight.accepted]:
                assert len(group.samples) == group.size and (group.size == size or group.step < step.number)
            assert all(step.number - group.step <= run.keep_surplus for group in trained)
            assert not any(group.prompt.must_finish for group in run.flight.running.values())
            again = [group.prompt for group in unused if group.prompt.must_finish]
            assert run.queue.waiting[: len(again)] == again and (run.filters or not again)
            assert not again or run.streams or all(group.prompt.must_finish for group in trained)
            put_off.update((prompt.text, prompt.episode) for prompt in again)
            assert max(put_off.values(), default=0) <= 3  # twice is rare already
            assert all(group.step == step.number for group in [*run.flight.accepted, *run.flight.running.values()])
            assert run.keep_surplus or not run.flight
            numbers = [group.number for group in trained]
            assert len(set(numbers)) == len(numbers)
        episode = run.queue.episode
        if run.queue.close_episode(run.flight.prompts):
            done = {prompt for prompt, of in (run.trained + run.dropped) if of == episode}
            assert done == prompts
        assert max((run.trained + run.dropped).values(), default=1) == 1


@given(runs(keep_surplus=st.just(False)), st.integers(0, 6))
@settings(max_examples=60)
def test_a_run_that_is_resumed_between_two_steps_goes_on_identically(make, stop):
    straight, killed = make(), make()
    for _ in range(stop):
        if straight.step() is None or killed.step() is None:
            return
    resumed = make()
    state = json.loads(json.dumps([part.state_dict() for part in (killed.planner, killed.flight)]))
    resumed.planner.load_state_dict(state[0])
    resumed.flight.load_state_dict(state[1])
    resumed.source.__dict__ |= vars(killed.source)
    resumed.queue.load_state_dict(json.loads(json.dumps(killed.queue.state_dict([]))))
    resumed.rng.setstate(killed.rng.getstate())
    for _ in range(3):
        expected, found = straight.step(), resumed.step()
        if expected is None:
            assert found is None
            return
        assert found == expected
    assert resumed.planner.state_dict() == straight.planner.state_dict()


@given(runs(keep_surplus=st.just(True)), st.integers(1, 6))
@settings(max_examples=60)
def test_a_run_that_is_killed_with_groups_in_flight_rolls_out_again_what_ran(make, stop):
    killed = make()
    for _ in range(stop):
        if killed.step() is None:
            return
    running = [group.prompt for group in killed.flight.running.values()]
    resumed = make()
    resumed.flight.load_state_dict(json.loads(json.dumps(killed.flight.state_dict())))
    resumed.queue.load_state_dict(json.loads(json.dumps(killed.queue.state_dict(running))))
    kept = [[(g.number, g.step, g.prompt, g.samples) for g in run.flight.accepted] for run in (killed, resumed)]
    assert kept[0] == kept[1] and not resumed.flight.running
    again = [prompt._replace(must_finish=True) for prompt in running]
    assert resumed.queue.waiting == again + killed.queue.waiting
    assert resumed.flight.unobserved == killed.flight.unobserved


@pytest.mark.parametrize("hold, num_groups", [("samples", 8), ("prompts", 4)])
def test_a_plan_follows_the_policies(hold, num_groups):
    controller, sampler = StragglerAwareGroupController([4]), DynamicSampler(max_gen_batches=3)
    settings = dict(hold=hold, samples=32, prompts=4, signal="tokens", num_engines=1)
    planner = StepPlanner(controller, sampler, TailBatcher(prompt_ratio=1.5, response_ratio=1.25), None, **settings)
    step = planner.plan(GroupsInFlight(), PromptQueue(Source(9)))
    assert step == Step(0, 4, num_groups, Round(False, 1.5, 5), sampler.acceptance_rate(4), 3 * num_groups)


@pytest.mark.parametrize(("right", "most"), [(0.5, 4), (0.0, 40)])
def test_a_long_round_draws_as_many_waiting_prompts_as_are_expected_to_fill_it(right, most):
    """At an acceptance rate of about 1 those that the step trains, at a low one many more."""
    planner = StepPlanner(
        StragglerAwareGroupController([32]),
        DynamicSampler(max_gen_batches=1000),
        TailBatcher(response_ratio=1.0),
        None,
        hold="prompts",
        samples=0,
        prompts=4,
        signal="tokens",
        num_engines=1,
    )
    flight, queue = GroupsInFlight(), PromptQueue(Source(200))
    scores = [1.0] * int(32 * right) + [0.0] * (32 - int(32 * right))
    planner.sampler.observe([planner.sampler.judge(scores)] * 200)
    for prompt in queue.draw(60, max_put_back=0, next_episode_allowed=False):
        queue.put_back(prompt)
    step = planner.plan(flight, queue)
    assert step.round.long
    drawn = planner.draw(step, flight, queue)
    owed = [prompt for prompt in drawn if prompt.must_finish]
    assert len(owed) == min(60, int(4 / step.acceptance_rate)) and (len(owed) <= 4 if most == 4 else len(owed) > most)
    planner.dispatch(step, flight, drawn)
    assert not any(prompt.must_finish for prompt in planner.draw(step, flight, queue))

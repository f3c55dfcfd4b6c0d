"""The scheduler's pure parts as a whole: random policies, arrivals, drops, stops, failures, carried groups and resumes."""

import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import EPISODES, runs

MOST_STEPS = 500  # of a run; the longest of 13,000 had 48


@given(runs())
@settings(max_examples=150)
def test_steps_are_full_and_nothing_is_lost_put_off_twice_or_trained_late(make):
    run, steps, put_off = make(), 0, Counter()
    prompts = {str(prompt) for prompt in range(run.source.count)}
    for _ in range(MOST_STEPS):
        if run.queue.episode > EPISODES:
            return
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
                assert 2 <= len(group.samples) <= group.size and (group.size == size or group.step < step.number)
            assert all(step.number - group.step <= run.keep_surplus for group in trained)
            assert not any(prompt.must_finish for prompt in run.flight.running_prompts)
            again = [group.prompt for group in unused if group.prompt.must_finish]
            assert run.queue.waiting[: len(again)] == again and (run.filters or run.sorts or not again)
            assert not again or run.streams or all(group.prompt.must_finish for group in trained)
            put_off.update((prompt.text, prompt.episode) for prompt in again)
            # Twice is rare already; more of it in sorted steps, whose prompts all must finish.
            assert max(put_off.values(), default=0) <= (6 if run.sorts else 3)
            running = [parts.group for parts in run.flight.running.values()]
            assert all(group.step == step.number for group in [*run.flight.accepted, *running])
            assert run.keep_surplus or not run.flight
            numbers = [group.number for group in trained]
            assert len(set(numbers)) == len(numbers)
        episode = run.queue.episode
        if run.queue.close_episode(run.flight.prompts):
            done = {prompt for prompt, of in (run.trained + run.dropped) if of == episode}
            assert done == prompts
        assert max((run.trained + run.dropped).values(), default=1) == 1
    raise AssertionError("the run goes on for ever")


@given(runs(keep_surplus=st.just(False)), st.integers(0, 6))
@settings(max_examples=60)
def test_a_run_that_is_resumed_between_two_steps_goes_on_identically(make, stop):
    straight, killed = make(), make()
    for _ in range(stop):
        if straight.step() is None or killed.step() is None:
            return
    resumed = make()
    resumed.planner.load_state_dict(json.loads(json.dumps(killed.planner.state_dict())))
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
    running = killed.flight.running_prompts
    resumed = make()
    resumed.flight.load_state_dict(json.loads(json.dumps(killed.flight.state_dict())))
    resumed.queue.load_state_dict(json.loads(json.dumps(killed.queue.state_dict(running))))
    kept = [[(g.number, g.step, g.prompt, g.samples) for g in run.flight.accepted] for run in (killed, resumed)]
    assert kept[0] == kept[1] and not resumed.flight.running
    again = [prompt._replace(must_finish=True) for prompt in running]
    assert resumed.queue.waiting == again + killed.queue.waiting
    assert resumed.flight.unobserved == killed.flight.unobserved

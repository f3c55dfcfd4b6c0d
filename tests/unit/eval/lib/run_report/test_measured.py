"""What runs measured, in the same columns."""

import numpy as np
import pytest
from lib.run_report.measured import measure
from report_runs import run_of


def test_a_step_is_the_sum_of_its_parts_whatever_its_total_has_besides():
    plain, ours = run_of([9.0, 4.0, 4.0]), run_of([9.0, 4.0, 4.0], timing__other=3.0)
    ours.steps["timing/step_total"] += 3.0
    for run in (plain, ours):
        found = measure(run, 0)
        assert found.steps["seconds"].tolist() == [12.5, 7.5, 7.5] and found.later["seconds"].tolist() == [7.5, 7.5]
        assert found.steps["spent"].tolist() == [0, 7.5, 15] and not found.asynchronous


def test_an_asynchronous_step_is_its_time_on_the_clock():
    run = run_of([6.0] * 5)
    run.steps["timing/step_total"] = 6.5  # of 9.5 in its parts
    found = measure(run, 0)
    assert found.asynchronous and found.steps["seconds"].tolist() == [6.5] * 5 and "asynchronous" in found.notes[0]


def test_a_resumed_runs_first_step_warms_up_and_its_gap_is_no_step():
    run = run_of([9.0, 4.0, 4.0, 90.0, 4.0], first=(0, 3), wall_time=[0.0, 10.0, 20.0, 9000.0, 9010.0])
    found = measure(run, 0)
    assert len(found.later) == 3 and found.steps["spent"].tolist() == [0, 7.5, 15, 22.5, 30]
    assert (found.steps["hours"] * 3600).tolist() == pytest.approx([0, 10, 20, 27.5, 37.5])


def test_a_fifth_of_the_steps_stands_for_all():
    assert measure(run_of([4.0] * 3, every=5), 0).steps["spent"].tolist() == [0, 37.5, 75]


def test_seconds_that_are_not_logged_or_not_finite_are_said():
    run = run_of([9.0, np.nan, 4.0])
    found = measure(run, 0)
    assert found.notes == ("seconds are finite in 2 of 3 steps",) and found.steps["spent"].tolist() == [0, 7.5, 15]
    bare = run_of([1.0, 1.0])
    bare = bare._replace(steps=bare.steps[["first", "wall_time"]].assign(reward=0.5))
    assert measure(bare, 0).notes == ("the seconds of a step are not logged",)
    total = bare._replace(steps=bare.steps.assign(**{"timing/step_total": 7.0}))
    assert "are timing/step_total" in measure(total, 0).notes[0] and measure(total, 0).steps["seconds"].tolist() == [
        7,
        7,
    ]


def test_dropped_rollouts_are_made_too():
    flags = {"flags": {"rollout.n_samples_per_prompt": 8}}
    made = [
        measure(run_of([4.0, 4.0]), 0),
        measure(run_of([4.0, 4.0], dynamic_filtering_pass_rate=50.0), 0),
        measure(
            run_of([4.0, 4.0], kept=flags, dynamic_filtering_pass_rate=400.0), 0
        ),  # as released: samples of prompts
        measure(run_of([4.0, 4.0], sagc__group_size=8.0, dynamic_filtering__dispatched=16.0), 0),
    ]
    assert [found.steps["made"].tolist() for found in made] == [[64, 64], [128, 128], [128, 128], [128, 128]]
    assert measure(run_of([4.0], dynamic_filtering_pass_rate=400.0), 0).steps["made"].isna().all()
    assert made[2].steps["groups"].tolist() == made[3].steps["groups"].tolist() == [8, 8]
    assert made[3].steps["group_size"].tolist() == [8, 8] and made[0].steps["group_size"].isna().all()


def test_evaluations_are_a_mean_over_their_sources():
    tags = {
        "eval_math_pass1": {2: 0.25, 4: 0.5},
        "eval_aime_pass1": {2: 0.75, 4: 1.0},
        "eval_num_samples": {2: 64, 4: 64},
    }
    found = measure(run_of([4.0] * 4, evaluations=tags), 0).evaluations
    assert found["reward"].tolist() == [0.5, 0.75] and found["of math"].tolist() == [0.25, 0.5]
    assert found["spent"].tolist() == [7.5, 22.5] and found["samples"].tolist() == [64, 64]


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "unpatched"])
def test_the_clock_of_an_evaluation_has_the_evaluation_whenever_its_step_was_logged(patched):
    ends = np.array([10.0, 20.0, 60.0, 70.0])  # an evaluation of 30 s follows the second step
    tags = {"eval_math_pass1": {2: 0.25}, "wall_time": {2: 50.0}}
    ends[1] += 30.0 * patched
    found = measure(run_of([4.0] * 4, evaluations=tags, wall_time=ends), 0).evaluations
    assert (3600 * found["hours"]).tolist() == pytest.approx([40.0]) and found["spent"].tolist() == [7.5]

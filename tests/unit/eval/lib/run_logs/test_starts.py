"""Starts and resumes put together: every step counts once, and two runs are not taken for one."""

import numpy as np
import pandas as pd
import pytest
from lib.run_logs.starts import COLUMNS, Start, one_run


def start(
    steps, at=0.0, folder="run", clock=60.0, name="", tags=("train/timing/generation", "train/reward"), cut=False
):
    """A start that logs a step a minute from `at` on; of a step the value is its number, by start."""
    rows = [(step, tag, step + at / 1e6, at + clock * number) for number, step in enumerate(steps) for tag in tags]
    return Start(name or f"from-{at:g}", pd.DataFrame(rows, columns=COLUMNS), cut, folder)


def test_repeated_steps_count_once_and_the_newest_wins():
    run = one_run("x", [start(range(16, 31), at=9000.0), start(range(1, 21))])
    assert run.steps.index.tolist() == [*range(1, 31)] and run.steps.index[run.steps["first"]].tolist() == [1, 16]
    assert run.steps["reward"][15] == 15 and run.steps["reward"][16] == 16 + 0.009
    assert run.notes == ("from-0 ends at step 20, a later start begins at 16: 5 steps are left out",)


def test_stale_steps_of_a_dead_start_are_left_out():
    assert one_run("x", [start(range(1, 21)), start([16, 17], at=9000.0)]).steps.index.tolist() == [*range(1, 18)]
    assert one_run("x", [start(range(1, 13)), start(range(1, 31), at=9000.0)]).steps["wall_time"].min() == 9000


def test_two_writers_at_the_same_time_are_two_runs():
    with pytest.raises(
        ValueError, match="x has two runs that wrote at the same time, from-0 and from-90: give each as"
    ):
        one_run("x", [start(range(1, 21)), start(range(1, 21), at=90.0)])


def test_a_package_that_is_switched_on_midway_is_another_arm():
    more = ("train/timing/generation", "train/reward", "train/sagc/group_size")
    with pytest.raises(
        ValueError, match="only one of from-0 and from-9000 logs sagc/group_size, so they are two arms"
    ):
        one_run("x", [start(range(1, 21)), start(range(16, 31), at=9000.0, tags=more)])


def test_two_folders_from_the_same_step_are_asked_for():
    with pytest.raises(
        ValueError, match="has the logs of a and b, which both begin at step 1: give the folder of one run"
    ):
        one_run("x", [start(range(1, 13), folder="a"), start(range(1, 13), at=9000.0, folder="b")])
    assert len(one_run("x", [start(range(1, 13), folder="a"), start(range(9, 13), at=9000.0, folder="b")]).steps) == 12


def test_a_step_that_is_half_written_is_left_out():
    whole = start(range(1, 6))
    half = whole._replace(table=whole.table.iloc[:-1])
    run = one_run("x", [half])
    assert run.steps.index.tolist() == [1, 2, 3, 4] and "still being written; step 5 is not whole" in run.notes[0]
    assert "was cut" in one_run("x", [half._replace(cut=True)]).notes[0]


def test_metrics_that_begin_late_are_no_half_step():
    late = start(range(6, 11), tags=("train/kl",))
    both = start(range(1, 11))
    table = pd.concat([both.table, late.table.assign(wall_time=60.0)])
    run = one_run("x", [both._replace(table=table)])
    assert len(run.steps) == 10 and run.steps["kl"].notna().sum() == 5 and not run.notes


def test_a_clock_that_goes_back_tells_no_wall_time():
    run = one_run("x", [start(range(1, 6), at=1000.0, clock=-60.0)])
    assert run.steps["wall_time"].isna().all() and "the clock of from-1000 goes back at step 2" in run.notes[0]


def test_every_fifth_step_and_missing_steps_are_said():
    run = one_run("x", [start(range(5, 55, 5))])
    assert run.every == 5 and "one step in 5" in run.notes[0]
    run = one_run("x", [start([1, 2, 3, 4, 9, 10])])
    assert run.every == 1 and "4 steps are missing" in run.notes[0]


def test_what_is_no_finite_number_is_missing():
    one = start(range(1, 5))
    one.table.loc[[0, 2], "value"] = [np.inf, np.nan]
    steps = one_run("x", [one]).steps
    assert steps["timing/generation"].isna().tolist() == [True, True, False, False] and len(steps) == 4


@pytest.mark.parametrize("tag, framework", [("timing_s/gen", "verl"), ("train/completions/mean_length", "TRL")])
def test_other_frameworks_are_named(tag, framework):
    with pytest.raises(ValueError, match=f"x is a log of {framework}, whose steps"):
        one_run("x", [start([1, 2], tags=("train/reward", tag))])

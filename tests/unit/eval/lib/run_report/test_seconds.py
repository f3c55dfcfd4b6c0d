"""Where the seconds go."""

import numpy as np
import pytest
from lib.run_report.seconds import section, times_faster, verdicts
from report_runs import arm_of, noisy, run_of


def rows_of(found, at=1):
    table = [block for block in found.blocks if hasattr(block, "rows")][at - 1]
    return [dict(zip(table.titles, row)) for row in table.rows]


def test_median_mean_parts_and_what_is_done_in_an_hour():
    off = arm_of("off", run_of(noisy(6.0), response_length=100.0))
    ours = arm_of("ours", run_of(noisy(3.0, seed=1), response_length=100.0))
    base, mine = rows_of(found := section([off, ours], off))
    assert (
        base["arm"] == "off (base)"
        and base["steps, finite of all"] == "60 of 60"
        and base["a step times as fast"] == "–"
    )
    assert float(base["median s a step"].split()[0]) == pytest.approx(9.5, abs=0.3)
    assert (
        float(mine["median generation"].split()[0]) == pytest.approx(3, abs=0.3)
        and mine["median training"] == "2.00 [2.00, 2.00]"
    )
    hour = rows_of(found, 2)[0]
    assert float(hour["samples an hour"].replace(",", "")) == pytest.approx(64 * 3600 / 9.5, rel=0.05)
    assert float(hour["response tokens an hour"].replace(",", "")) == pytest.approx(6400 * 3600 / 9.5, rel=0.05)
    assert hour["groups kept an hour"] == "not known"
    (line,) = verdicts(off, [ours])
    assert "ours was faster than off" in line


def test_a_verdict_sees_the_long_rounds_that_a_median_does_not():
    """Short rounds of 5 s instead of 6, and each fifth one takes 12: on average it is slower."""
    seconds = np.tile([1.5, 1.5, 1.5, 1.5, 8.5], 20)
    long = np.tile([0.0, 0, 0, 0, 1], 20)
    off = arm_of("off", run_of(noisy(2.5, 100, spread=0.01)))
    ours = arm_of("ours", run_of([90, *seconds], tail_batching__long_round=[0, *long]))
    base, mine = rows_of(found := section([off, ours], off))
    assert float(mine["median s a step"].split()[0]) < float(base["median s a step"].split()[0])
    assert "ours was slower than off" in verdicts(off, [ours])[0]
    rounds = rows_of(found, 2)
    assert [(row["rounds"], row["steps"]) for row in rounds] == [("long", "20"), ("all others", "80")]
    assert rounds[0]["median s a step"].startswith("12.00")
    mixed = arm_of("mixed", run_of([90, *seconds], tail_batching__long_round=[np.nan, *np.where(long, 1, np.nan)]))
    assert [row["steps"] for row in rows_of(section([off, mixed], off), 2)] == ["20", "80"]  # plain steps log no kind
    plain = arm_of("plain", run_of([90, *seconds], tail_batching__long_round=[0, *(0 * long)]))
    assert "Rounds of tail batching:" not in section([off, plain], off).blocks


def test_arms_with_other_samples_a_step_are_compared_by_the_sample():
    off, ours = arm_of("off", run_of(noisy(6.0))), arm_of(
        "ours", run_of(noisy(6.0, seed=1), rollout__num_samples=128.0)
    )
    (line,) = verdicts(off, [ours])
    assert "ours was faster than off: a sample is 2.0" in line
    assert times_faster(off, ours)["value"] == pytest.approx(1, abs=0.05)


def test_an_asynchronous_arm_is_not_compared_with_one_that_is_not():
    run = run_of(noisy(6.0))
    run.steps["timing/step_total"] = 6.0
    (line,) = verdicts(arm_of("off", run_of(noisy(6.0))), [arm_of("ours", run)])
    assert "one is asynchronous and one is not" in line


def test_seeds_have_an_interval_over_seeds():
    off = arm_of("off", *[run_of(noisy(6.0 + seed / 10, seed=seed)) for seed in range(3)])
    ours = arm_of("ours", *[run_of(noisy(3.0 + seed / 10, seed=seed)) for seed in range(3)])
    assert times_faster(off, ours)["runs"] == 3

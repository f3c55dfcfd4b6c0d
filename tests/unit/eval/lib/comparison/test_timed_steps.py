import pytest
from comparison_runs import scalars, write_run
from lib.comparison.step_arms import WARM_UP
from lib.comparison.timed_steps import read_steps

PHASES = 1.0 + 2.0 + 0.5  # seconds, as `scalars` has them, without generation


def test_seconds_are_those_of_the_clock_without_pauses(tmp_path):
    """Steps take 6 s, 1 s of them generation; the second that counts is paused for 3 s in its generation."""
    ends = [100 + 6.0 * n for n in range(WARM_UP + 3)]
    ends[WARM_UP + 1 :] = [at + 3.0 for at in ends[WARM_UP + 1 :]]
    generation = [1.0] * (WARM_UP + 1) + [4.0, 1.0]
    finer = {"step_seconds/idle_tail": 0.25, "step_seconds/optimizer": 0.125}
    write_run(tmp_path, [], [(at, scalars(part, 128.0, **finer)) for at, part in zip(ends, generation)])
    paused_from = ends[WARM_UP] + 0.25
    steps = read_steps(tmp_path, 3, [[paused_from, paused_from + 3.0]])
    assert steps["step"].tolist() == [WARM_UP + 1, WARM_UP + 2, WARM_UP + 3]
    assert steps["seconds"].tolist() == pytest.approx([6.0] * 3, abs=1e-3)
    assert steps["generation"].tolist() == [1.0] * 3 and steps["idle_tail"].tolist() == [0.25] * 3
    assert steps["rest"].tolist() == pytest.approx([6.0 - PHASES - 1.0] * 3, abs=1e-3)


def test_what_unpatched_openrlhf_does_not_log_is_missing(tmp_path):
    write_run(tmp_path, [], [(100 + 6.0 * n, scalars(1.0, 128.0)) for n in range(WARM_UP + 1)])
    steps = read_steps(tmp_path, 1, [])
    assert steps[["idle_tail", "optimizer"]].isna().all(axis=None) and steps["generation"].tolist() == [1.0]
    with pytest.raises(
        ValueError, match=f"has 1 of 2 steps after the {WARM_UP} of the warm-up: ask for fewer --steps"
    ):
        read_steps(tmp_path, 2, [])

"""What the TensorBoard log of a run says."""

import pytest
from comparison_runs import write_run
from lib.advice.run_log import PARTS, bound_of, lines_of


def log(folder, steps=21, total=10.0, tail=None, **seconds):
    parts = {"generation": 6.0, "experience": 1.0, "training": 2.0, "sync": 0.5} | seconds
    scalars = {PARTS[part]: value for part, value in parts.items()} | {"timing/step_total": total}
    scalars |= {} if tail is None else {"rollout/idle_tail_seconds": tail}
    warm_up = scalars | {"timing/generation": 60.0, "timing/step_total": 64.0}
    write_run(folder, [], [(float(step), scalars if step else warm_up) for step in range(steps)])
    return folder / "tensorboard"


def test_unpatched_openrlhf_tells_generation_alone(tmp_path):
    folder = log(tmp_path)
    bound = bound_of(folder)
    assert (bound.steps, bound.seconds, bound.spared, bound.idle_tail) == (20, 10.0, 6.0, False)
    assert bound.speedup == pytest.approx(2.5)
    answer = " ".join(lines_of(folder, bound))
    assert "20 steps of 10 s on average: generation 6, experience 1, training 2, sync 0.5." in answer
    assert "more than 2.50 times as fast: that is without generation that training did not hide, 6 s" in answer
    assert "Advice: none yet." in answer and "--rollout.trace" in answer


def test_this_project_logs_the_idle_tail(tmp_path):
    bound = bound_of(log(tmp_path, tail=2.0))
    assert (bound.spared, bound.idle_tail) == (2.0, True) and bound.speedup == pytest.approx(1.25)
    assert "the engines' idle tail, 2 s" in " ".join(lines_of(tmp_path, bound))


def test_an_asynchronous_run_waits_for_the_end_of_generation_alone(tmp_path):
    assert bound_of(log(tmp_path, generation=9.0, training=7.0)).spared == pytest.approx(1.5)


def test_a_step_of_training_needs_no_switch(tmp_path):
    folder = log(tmp_path, generation=0.2, training=8.0)
    _, answer = lines_of(folder, bound_of(folder))
    assert answer.startswith(
        "Advice: none. Without generation that training did not hide, 0.2 s, a step is 1.02 times"
    )


def test_too_little_or_no_log_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--log: there is no .*/none"):
        bound_of(tmp_path / "none")
    with pytest.raises(ValueError, match="has 4 steps behind its first: too few, 10 would do"):
        bound_of(log(tmp_path / "short", steps=5))
    write_run(tmp_path / "other", [], [(1.0, {"loss": 1.0})])
    with pytest.raises(
        ValueError, match="has no timing/step_total, timing/generation, .*: it is not a log of OpenRLHF"
    ):
        bound_of(tmp_path / "other" / "tensorboard")
    with pytest.raises(ValueError, match="--log: .* (has the logs of|has two runs that wrote|only one of)"):
        bound_of(tmp_path)


def test_the_log_of_the_run_before_is_left_out(tmp_path):
    """A run that begins anew has moved it aside."""
    wanted = bound_of(folder := log(tmp_path / "run"))
    (events,) = folder.rglob("events.out.tfevents.*")
    (events.parent / "earlier-1").mkdir()
    (events.parent / "earlier-1" / events.name).write_bytes(events.read_bytes())
    assert bound_of(folder) == wanted

"""Healthy and unhealthy runs: what is drawn in red does go wrong there, and nowhere else."""

import health
import pandas as pd
import pytest

LIMIT, CAP, MAX_SHARE = 0.3, 10, 0.1
LOG = {
    "sagc/straggler_rate_mean": [0.4, 0.3],
    "sagc/group_size": [8.0, 16.0],
    "dynamic_filtering/dispatched": [16.0, 8.0],
    "dynamic_filtering/gen_batches": [1.0, 2.0],
    "rollout/reward_failures": [0.0, 32.0],
}


def test_a_limit_out_of_reach_is_exceeded_at_the_smallest_size():
    run = health.out_of_reach(LIMIT, seed=1)
    last = run.steps.tail(health.STEPS // 2)
    assert (last["group_size"] == 4).all() and (last["rate"] > LIMIT).all()
    assert len(run.steps) == health.STEPS and not run.ended
    assert (run.steps["gen_batches"] == 1).all() and (run.steps["failure_share"] == 0).all()


def test_the_cap_ends_a_run_without_a_signal():
    run = health.cap_reached(LIMIT, 1, CAP)
    assert run.ended and len(run.steps) < health.STEPS and run.telling == ("gen_batches",)
    assert run.steps["gen_batches"].iloc[-1] == CAP > run.steps["gen_batches"].iloc[:-1].max()
    assert run.steps["gen_batches"].iloc[0] < 3


def test_a_reward_that_fails_too_often_ends_a_run():
    run = health.reward_failing(LIMIT, 1, MAX_SHARE)
    shares = run.steps["failure_share"]
    assert run.ended and shares.iloc[-1] > MAX_SHARE >= shares.iloc[:-1].max()
    assert (shares.head(health.STEPS // 3) == 0).all()


def test_a_log_gives_the_panels_and_other_folders_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "read_run", lambda folder: pd.DataFrame(LOG))
    steps = health.real(tmp_path)
    assert list(steps) == list(health.PANELS) and steps["failure_share"].tolist() == [0, 0.25]
    monkeypatch.setattr(health, "read_run", lambda folder: pd.DataFrame(LOG).drop(columns="sagc/group_size"))
    with pytest.raises(ValueError, match="has no 'sagc/group_size': use the log of a run with"):
        health.real(tmp_path)
    with pytest.raises(ValueError, match="there is no such folder: run train_scripts/quickstart.sh first"):
        health.real(tmp_path / "none")


def test_the_command_draws_a_log_beside_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(health, "read_run", lambda folder: pd.DataFrame(LOG))
    monkeypatch.setattr(health, "STEPS", 6)
    plot = tmp_path / "health.png"
    monkeypatch.setattr("sys.argv", ["health.py", "--tensorboard", str(tmp_path), "--output", str(plot)])
    health.main()
    assert plot.stat().st_size > 20_000 and capsys.readouterr().out == f"{plot}\n"
    monkeypatch.setattr("sys.argv", ["health.py", "--output", str(tmp_path / "none/health.png")])
    with pytest.raises(SystemExit, match="eval/health.py: --output .*: there is no folder"):
        health.main()

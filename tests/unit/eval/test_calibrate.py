"""The command calibrate.py, on logs of known costs."""

import sys

import calibrate
import numpy as np
import pandas as pd
import pytest
from simulation.costs import CostModel
from simulation.lengths import Trace


def timed_log(costs, source, hold, size, steps):
    """What TensorBoard would hold of steps that cost this, their groups drawn from `source`."""
    generator = np.random.default_rng(size)
    groups = calibrate.SAMPLES // size if hold == "samples" else calibrate.PROMPTS
    drawn = [source.draw_rollouts(source.draw_prompts(groups, generator), size, generator)[0] for _ in range(steps)]
    log = pd.DataFrame({"rollout/num_samples": [tokens.size for tokens in drawn]})
    log["rollout/response_length_max"] = [tokens.max() for tokens in drawn]
    log["response_length"] = [tokens.mean() for tokens in drawn]
    log["total_length"] = log["response_length"] + 8
    tokens = log["response_length"] * log["rollout/num_samples"]
    every, longest = log["total_length"] * log["rollout/num_samples"], log["rollout/response_length_max"]
    log["timing/generation"] = costs.generation_base + costs.decode_base * longest + costs.decode_per_request * tokens
    log["timing/generation"] += costs.prefill_per_token * (every - tokens)
    log["timing/make_experience"] = costs.experience_base + costs.experience_per_token * every
    log["timing/ppo_train"] = costs.train_base + costs.train_per_token * every
    log["timing/broadcast"] = costs.sync
    return log.assign(**{"timing/step_total": log[list(calibrate.PARTS.values())].sum(axis=1)})


def test_calibration_refuses_a_folder_for_its_costs_before_it_trains(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.setattr(sys, "argv", ["calibrate.py", "--task", str(tmp_path), "--engine", str(tmp_path)])
    with pytest.raises(SystemExit, match="^eval/calibrate.py: --engine .*: it is a folder: give a file$"):
        calibrate.main()


def test_calibration_finds_the_costs_behind_a_log_and_predicts_a_size_left_out(trace, tmp_path):
    costs = CostModel(
        decode_base=2e-3,
        decode_per_request=3e-5,
        prefill_per_token=1e-4,
        generation_base=0.1,
        experience_base=0.03,
        experience_per_token=2e-5,
        train_base=0.02,
        train_per_token=7e-5,
        sync=0.13,
        **calibrate.GIVEN,
    )
    source = Trace(trace)
    runs = [(hold, size) for hold in calibrate.HOLDS for size in calibrate.SIZES]
    logs = [calibrate.features(timed_log(costs, source, *run, 1000)).assign(hold=run[0], size=run[1]) for run in runs]
    steps = pd.concat(logs).assign(round=0)
    assert vars(calibrate.fit(steps)) == pytest.approx(vars(costs), rel=1e-6)
    table = calibrate.leave_one_size_out(steps, source)
    assert table["error_percent"].abs().max() < 5 and len(table) == 8
    steps.loc[steps["size"] == 32, "seconds"] *= 2
    table = calibrate.leave_one_size_out(steps, source)
    assert table[table["size"] == 32]["error_percent"].between(-53, -47).all()
    assert calibrate.report(table).count("\n") == 10
    calibrate.plot(table, tmp_path / "calibration.png")
    assert (tmp_path / "calibration.png").stat().st_size > 10_000

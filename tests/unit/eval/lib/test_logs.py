"""What a training run leaves behind."""

import pytest
from comparison_runs import write_run
from lib.logs import phase_seconds, read_run


def test_scalars_are_a_row_a_step(tmp_path):
    write_run(tmp_path, [], [(10.0, {"reward": 0.5, "timing/generation": 2.0}), (13.0, {"reward": 0.75})])
    run = read_run(tmp_path / "tensorboard/run")
    assert run.index.tolist() == [1, 2] and run["reward"].tolist() == [0.5, 0.75]
    assert run["wall_time"].tolist() == [10.0, 13.0] and run["timing/generation"].isna().tolist() == [False, True]


def test_a_run_without_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no training steps in .*: did the run reach its first step"):
        read_run(tmp_path)


def test_the_seconds_of_steps_are_the_sum_of_their_phases():
    timings = "'timing/make_experience': 5e-1, 'timing/ppo_train': 1.0, 'timing/broadcast': 0.25, 'timing/other': 9.0"
    first = (
        f"(pid=7) Global step 12: {{'reward': 0.5, {timings}, 'timing/generation': 1.5, 'timing/step_total': 3.25}}"
    )
    assert phase_seconds(f"x\n{first}\n'timing/generation': 7.0\nGlobal step 13: {{'timing/generation': 2}}\n") == [
        3.25,
        2.0,
    ]

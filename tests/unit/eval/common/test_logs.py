"""What a training run leaves behind."""

import pytest
from common.logs import STEP, read_run
from comparison_runs import write_run


def test_scalars_are_a_row_a_step(tmp_path):
    write_run(tmp_path, [], [(10.0, {"reward": 0.5, "timing/generation": 2.0}), (13.0, {"reward": 0.75})])
    run = read_run(tmp_path / "tensorboard/run")
    assert run.index.tolist() == [1, 2] and run["reward"].tolist() == [0.5, 0.75]
    assert run["wall_time"].tolist() == [10.0, 13.0] and run["timing/generation"].isna().tolist() == [False, True]


def test_a_run_without_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no training steps in .*: did the run reach its first step"):
        read_run(tmp_path)


def test_the_seconds_of_a_step_are_read_off_its_line():
    line = "(pid=7) Global step 12: {'reward': 0.5, 'timing/step_total': 3.25, 'timing/generation': 1.0}"
    assert STEP.search(line)[1] == "3.25"
    assert not STEP.search("Global step 12: {'reward': 0.5}")

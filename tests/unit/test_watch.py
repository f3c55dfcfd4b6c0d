import subprocess
import sys
from pathlib import Path

WATCH = Path(__file__).parents[2] / "train_scripts" / "watch.py"
STEP = "INFO Global step {}: {{'rollout/reward_mean': 0.5, 'sagc/group_size': 8.0, 'timing/step_total': 1.25}}\n"


def watch(text, log):
    command = [sys.executable, WATCH, "--log", log, "--steps", "20"]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


def test_steps_are_shown_and_everything_is_logged(tmp_path):
    text = "starting\n" + "".join(STEP.format(step) for step in range(1, 21)) + "saved\n"
    result = watch(text, tmp_path / "log")
    assert result.returncode == 0
    assert "step 10: reward 0.50" in result.stdout and "group size 8.00" in result.stdout
    assert (tmp_path / "log").read_text() == text


def test_a_run_without_a_step_fails(tmp_path):
    result = watch("starting\nopenrlhf_sagc: --rollout.sagc.group_sizes [7] is wrong\n", tmp_path / "log")
    assert result.returncode == 1
    assert "[7] is wrong" in (tmp_path / "log").read_text()

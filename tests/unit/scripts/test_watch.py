import os
import re
import subprocess
import sys

from cpu_stack import ROOT

WATCH = ROOT / "train_scripts" / "watch.py"
EPISODE = "Episode [{}/2]:  43%|████▎     | {}/20 [01:12<01:19,  4.63it/s]\r"
STEP = (
    "INFO Global step {}: {{'rollout/reward_mean': 0.5, 'sagc/group_size': 8.0, 'sagc/straggler_rate_mean': 0.25}}\n"
)


def watch(text, log):
    command = [sys.executable, WATCH, "--log", log]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)


def test_steps_are_shown_and_everything_is_logged(tmp_path):
    steps = [(episode, prompts) for episode in (1, 2) for prompts in range(1, 21)]
    text = "".join(EPISODE.format(*step) + STEP.format(i + 1) for i, step in enumerate(steps)) + "saved\n"
    result = watch("starting\n" + text, tmp_path / "log")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line.partition(" done")[0] for line in lines] == [f"{10 * tenth}%" for tenth in range(1, 11)]
    assert all("reward 0.50  group size 8.00  straggler rate 0.25" in line for line in lines)
    assert "step 36  " in lines[-2]
    assert (tmp_path / "log").read_bytes().decode() == "starting\n" + text


def test_on_a_terminal_one_line_is_rewritten_with_the_time_left(tmp_path):
    steps = "".join(EPISODE.format(1, i) + STEP.format(i) for i in range(1, 21))
    command = f"sleep 1 | cat - {tmp_path}/in | {sys.executable} {WATCH} --log {tmp_path}/log"
    (tmp_path / "in").write_text(steps)
    terminal = ["script", "-qec", command, "/dev/null"]
    shown = subprocess.run(
        terminal, env={**os.environ, "COLUMNS": "80"}, capture_output=True, timeout=60
    ).stdout.decode()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r" 50% \d+ s left  step 20  reward 0.50  group size 8.00  straggler rate 0.25\s*$", shown)
    assert shown.count("\n") == 1


def test_a_run_without_a_step_fails(tmp_path):
    result = watch("starting\nopenrlhf_sagc: --rollout.sagc.group_sizes [7] is wrong\n", tmp_path / "log")
    assert result.returncode == 1
    assert "[7] is wrong" in (tmp_path / "log").read_text()

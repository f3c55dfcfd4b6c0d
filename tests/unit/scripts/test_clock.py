"""The minutes that the set-up and the quickstart announce."""

import os
import re
import runpy
import subprocess

import pytest
from cpu_stack import ROOT

SCRIPTS = ROOT / "train_scripts"


def clock(script: str, **environment: str) -> str:
    environment = {**os.environ, **environment}
    command = ["bash", "-c", f". {SCRIPTS}/clock.sh; {script}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "slowness, seconds, words",
    [
        ("100", 35, "40 s"),
        ("100", 80, "80 s"),
        ("100", 90, "2 min"),
        ("100", 325, "5 min"),
        ("200", 325, "11 min"),
        ("50", 0, "0 s"),
    ],
)
def test_durations_are_scaled_to_the_machine(slowness, seconds, words):
    assert clock(f"duration {seconds}", SLOWNESS=slowness) == words


def test_a_machine_is_measured_once():
    assert clock("measure_machine; echo $SLOWNESS", SLOWNESS="123") == "123"
    measured = clock("unset SLOWNESS; measure_machine; bash -c 'echo $SLOWNESS'")
    assert int(measured) > 5


@pytest.mark.parametrize(
    "real, cpu, percent",
    [("0.55", "0.95", 100), ("1.1", "1.9", 200), ("0.275", "0.475", 50), ("2.2", "0.95", 200)],
    ids=["the machine of the seconds", "half as fast", "twice as fast", "four programs for each core"],
)
def test_the_seconds_follow_the_speed_and_the_root_of_the_load(real, cpu, percent):
    assert int(clock(f"slowness {real} {cpu}")) == percent


def said_left(script: str) -> list[str]:
    """The sums of seconds that stand behind the `left` of a script's stages, as they are written in it."""
    return re.findall(r"stage \"(\d)/4.*?\" (.*)$", (SCRIPTS / script).read_text(), re.M)


def test_the_time_left_falls_from_stage_to_stage():
    sums = said_left("setup.sh")
    assert [number for number, _ in sums] == ["1", "2", "3", "4"]
    left = [int(clock(f"echo $(({seconds.removeprefix('$((').removesuffix('))')}))")) for _, seconds in sums]
    assert left == sorted(left, reverse=True) and len(set(left)) == 4
    assert left[0] == int(clock("echo $SET_UP_SECONDS"))


class Clock:
    """A clock that is told the time."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def time_left():
    module = runpy.run_path(str(SCRIPTS / "progress.py"))
    clock = Clock()
    estimate = module["TimeLeft"](clock)

    def at(seconds: float, done: float):
        clock.now = seconds
        return estimate(done)

    return at


def test_time_left_is_of_the_mean_speed_since_the_first_report(time_left):
    assert time_left(45, 0.02) is None  # what came before, such as the start of Ray, is no work
    assert time_left(46, 0.03) is None  # too little to tell
    assert time_left(55, 0.12) == pytest.approx(88)
    assert time_left(95, 0.52) == pytest.approx(48)
    assert time_left(143, 1.0) == 0


def test_time_left_does_not_grow_where_the_work_becomes_slower(time_left):
    shares = [0, 0.1, 0.2, 0.3, 0.35, 0.4, 0.5, 0.9, 1.0]
    seconds = [0, 20, 40, 60, 200, 300, 350, 400, 410]
    left = [time_left(*report) for report in zip(seconds, shares)]
    assert left[0] is None and left[1] == pytest.approx(180)
    assert left[1:] == sorted(left[1:], reverse=True) and left[-1] == 0

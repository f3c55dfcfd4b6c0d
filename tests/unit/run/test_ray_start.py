"""Ray is started again where its own processes were too slow."""

import subprocess

import pytest

from openrlhf_sagc.run.ray_start import started

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed"


def slow_starts(number):
    """A `ray.init` that gives up so many times before it starts, and the processes that it has begun."""
    begun = []

    def init(include_dashboard):
        begun.append(subprocess.Popen(["sleep", "60"]))
        if len(begun) <= number:
            raise Exception(SLOW)
        return include_dashboard

    return init, begun


def test_ray_is_started_again_where_it_gives_up_on_its_own_processes(capsys):
    """And what it has left behind ends."""
    init, begun = slow_starts(2)
    assert started(init, include_dashboard="no") == "no"
    said = capsys.readouterr().err.splitlines()
    assert [line.partition("in time ")[2] for line in said] == ["(1 of 3)", "(2 of 3)"]
    assert begun[2].poll() is None
    begun[2].kill()
    assert [process.wait(timeout=10) for process in begun] == [-9] * 3


def test_ray_that_never_starts_is_one_line():
    init, begun = slow_starts(9)
    with pytest.raises(SystemExit, match="Ray does not start, since the machine is busy or .* disk. The "):
        started(init, include_dashboard=False)
    assert len(begun) == 3


def test_other_errors_of_ray_are_its_own():
    def init():
        raise ConnectionError("Could not find any running Ray instance")

    with pytest.raises(ConnectionError, match="Could not find"):
        started(init)

"""Runs that take turns; the runs are scripts whose steps wait until the test lets them go."""

import fcntl
import re
import time

import lib.turns
import pandas as pd
import psutil
import pytest
from lib.run_logs.console import STEP_END
from lib.turns import opened_log, paused_seconds, refuse_if_written, take_turns, without_pauses


def script(folder, name, steps=3):
    """A run that ends its step when the file NAME-STEP is there, and itself when NAME-end is; it has a child."""
    wait = f"until [ -e {folder}/{name}-%s ]; do sleep 0.01; done\n"
    lines = [wait % number + f"echo \"x.py:1] Global step {number}: {{'x': 1}}\"\n" for number in range(1, steps + 1)]
    return "sleep 1000 & child=$!\n" + "".join(lines) + wait % "end" + "kill $child\n"


def commands_of(folder, **scripts):
    return {name: (["bash", "-c", words], folder / f"{name}.log") for name, words in scripts.items()}


@pytest.fixture(autouse=True)
def _earlier(monkeypatch):
    """Other tests of this process may have left children, such as the grader's."""
    earlier = {process.pid for process in psutil.Process().children(recursive=True)}
    monkeypatch.setitem(globals(), "EARLIER", earlier)


EARLIER: set[int] = set()


def below():
    """Processes below this one that a test has started and that have not ended."""
    found = [process for process in psutil.Process().children(recursive=True) if process.pid not in EARLIER]
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def are_stopped(processes, seconds=30.0):
    """Whether all of them are stopped, a moment after their signal."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if all(process.status() == psutil.STATUS_STOPPED for process in processes):
            return True
        time.sleep(0.01)
    return False


def ended(processes, seconds=30.0):
    """Whether all of them end soon."""
    return not psutil.wait_procs(processes, timeout=seconds)[1]


def test_one_run_at_a_time_makes_a_step(tmp_path):
    turns = ["a-1", "b-1", "a-2", "b-2", "a-3", "b-3", "a-end", "b-end"]
    (tmp_path / turns[0]).touch()
    seen = []

    def on_turn(name, printed):
        assert printed.count("Global step") == (turns[len(seen)] != f"{name}-end")
        seen.append((len(below()), are_stopped(below())))
        if len(seen) < len(turns):
            (tmp_path / turns[len(seen)]).touch()

    commands = commands_of(tmp_path, a=script(tmp_path, "a"), b=script(tmp_path, "b"))
    pauses = take_turns(commands, STEP_END, 1, on_turn)
    assert len(seen) == len(turns) and all(stopped for _, stopped in seen)
    assert all(count >= 2 for count, _ in seen[:6])  # a shell and its child at least
    assert not below()
    for name in "ab":
        assert (tmp_path / f"{name}.log").read_text().count("Global step") == 3
        assert len(pauses[name]) == 3 and all(begin < end for begin, end in pauses[name])
    # Between two turns all are stopped.
    begins, ends = zip(*sorted(pauses["a"] + pauses["b"]))
    assert all(
        pauses["a"][turn][0] < pauses["b"][turn][0] < pauses["a"][turn][1] < pauses["b"][turn][1] for turn in range(3)
    )
    assert list(ends) == sorted(ends) and list(begins) == sorted(begins)


ENDLESS = "echo 'x.py:1] Global step 1: {}'; exec sleep 1000"


@pytest.mark.parametrize(
    "other, message",
    [
        ("echo 'x.py:1] Global step 1: {}'; echo no memory; exit 3", r"a run failed with exit code 3, see .*b\.log"),
        ("exit 0", r"a run ended in its warm-up, see .*b\.log"),
    ],
)
def test_a_run_that_ends_too_early_is_named_and_the_others_are_ended(tmp_path, other, message):
    family = []
    with pytest.raises(ValueError, match=message):
        take_turns(commands_of(tmp_path, a=ENDLESS, b=other), STEP_END, 1, lambda *_: family.extend(below()))
    assert family and ended(family)


def test_a_run_that_dies_while_it_is_stopped_is_named_and_its_other_processes_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(lib.turns, "GRACE_SECONDS", 0.5)
    (tmp_path / "a-1").touch()
    family = []

    def on_turn(*_):
        family.extend(below())
        (shell,) = [process for process in family if process.ppid() == psutil.Process().pid]
        shell.kill()

    with pytest.raises(ValueError, match=r"exit code -9, see .*a\.log"):
        take_turns(commands_of(tmp_path, a=script(tmp_path, "a")), STEP_END, 1, on_turn)
    assert len(family) >= 2 and ended(family)


@pytest.mark.parametrize("first", ["", "trap '' TERM; "])
def test_all_runs_are_ended_when_it_is_interrupted(tmp_path, monkeypatch, first):
    monkeypatch.setattr(lib.turns, "GRACE_SECONDS", 0.5 if first else 30.0)
    family = []

    def on_turn(*_):
        family.extend(below())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_turns(commands_of(tmp_path, a=first + ENDLESS), STEP_END, 1, on_turn)
    assert family and ended(family)


def test_a_run_that_has_enough_goes_on_to_its_last_line_and_is_ended(tmp_path):
    (tmp_path / "b-1").touch()
    first = (
        "echo 'x.py:1] Global step 1: {}'; until [ -e %s/a-last ]; do sleep 0.01; done; echo last; exec sleep 1000"
        % tmp_path
    )
    commands = commands_of(tmp_path, a=first, b=script(tmp_path, "b", steps=1))
    turns = []

    def on_turn(name, printed):
        turns.append(name)
        (tmp_path / ("a-last" if name == "a" else "b-end")).touch()
        return re.compile("last") if name == "a" else None

    pauses = take_turns(commands, STEP_END, 1, on_turn, turns.append)
    assert turns == ["a", "a", "b", "b"] and "last" in (tmp_path / "a.log").read_text()  # the second "a" is its end
    assert len(pauses["b"]) == 1 and not below()


def test_a_run_that_ends_before_its_last_line_is_named(tmp_path):
    (tmp_path / "a-1").touch()

    def on_turn(*_):
        (tmp_path / "a-end").touch()
        return re.compile("last")

    with pytest.raises(ValueError, match=r"a run ended too early, see .*a\.log"):
        take_turns(commands_of(tmp_path, a=script(tmp_path, "a", steps=1)), STEP_END, 1, on_turn)


def test_seconds_of_the_pauses_before_the_end_of_each_step():
    log = pd.DataFrame({"wall_time": [9.0, 22.0, 23.0, 40.0]}, index=[1, 2, 3, 4])
    assert paused_seconds(log, [[5.0, 6.0], [10.0, 12.0], [20.0, 25.0]]).to_dict() == {1: 1.0, 2: 4.0, 3: 1.0, 4: 2.0}
    assert paused_seconds(log, []).to_dict() == dict.fromkeys(log.index, 0.0)
    generation = pd.Series([1.5, 4.0, 0.5, float("nan")], index=log.index)
    paused = paused_seconds(log, [[5.0, 6.0], [10.0, 12.0], [20.0, 25.0]])
    assert without_pauses(generation, paused).tolist()[:3] == [0.5, 0.0, 0.5]


def test_a_run_holds_its_log_until_its_last_process_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(lib.turns, "GRACE_SECONDS", 0.5)
    log = tmp_path / "a.log"
    refuse_if_written(log)  # there is none
    (tmp_path / "a-1").touch()

    def on_turn(name, printed):
        with pytest.raises(ValueError, match="a.log belongs to a run that has not ended"):
            refuse_if_written(log)
        (tmp_path / "a-2").touch()
        return STEP_END

    take_turns(commands_of(tmp_path, a=script(tmp_path, "a")), STEP_END, 1, on_turn)
    refuse_if_written(log)


def test_a_process_that_was_left_behind_is_named(tmp_path):
    log = tmp_path / "a.log"
    with log.open("w") as sink:
        fcntl.flock(sink, fcntl.LOCK_EX)
        left = psutil.Popen(["sleep", "1000"], stdout=sink)
    try:
        with pytest.raises(ValueError, match=f"ended: end it with kill -CONT {left.pid}; kill {left.pid}$"):
            refuse_if_written(log)
    finally:
        left.kill()
        left.wait()
    refuse_if_written(log)


def test_a_log_that_a_run_writes_is_not_cut(tmp_path):
    log = tmp_path / "train.log"
    with opened_log(log) as sink:
        sink.write("Global step 1")
        sink.flush()
        with pytest.raises(ValueError, match=f"^{log} belongs to a run that has not ended"):
            with opened_log(log):
                pass
        assert log.read_text() == "Global step 1"
    with opened_log(log):
        assert not log.read_text()

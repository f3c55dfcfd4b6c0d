"""A run that gets signals, with the trainer and the store of Ray's head made up."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest
from cpu_stack import ROOT

PATHS = [str(ROOT / "tests/unit/run"), str(ROOT / "tests"), str(ROOT)]
# What a process of the run does; `told` has what the trainer has said, and `wish` returns what it hears.
RUN = """
import json, os, signal, sys, threading, time
sys.path[:0] = {paths!r}
from contextlib import ExitStack
from types import SimpleNamespace
from openrlhf_sagc.run.output_folders import held
from openrlhf_sagc.run import signals, wishes
from openrlhf_sagc.run.wishes import GivenUp, Training, Wish
heard, told = [], {{}}
signals.tell = lambda word: heard.append(word) or True
signals.told = told.get
ckpt = dict(path={folder!r} + "/checkpoints", output_dir={folder!r}, grace_seconds={grace}, disable_ds=False, save_steps={saves}, load_enable={loads})
args = SimpleNamespace(ckpt=SimpleNamespace(best_metric_key="", **ckpt), eval=SimpleNamespace(dataset=None, steps=-1))
signals.last_whole = lambda args: {good}
if {ignored}:
    signal.signal({ignored}, signal.SIG_IGN)

def wish(kind="end"):
    while not any(getattr(word, kind) for word in heard):
        time.sleep(0.01)
    return next(word for word in heard if getattr(word, kind))

with ExitStack() as stack:
    if {holds}:
        stack.enter_context(held("--ckpt.path", {folder!r} + "/checkpoints"))
    stack.enter_context(signals.ended_by_signals(args, {holds}))
    {before}
    print("ready", flush=True)
    {body}
print("finished", heard, flush=True)
"""
GENERATES = "told[Training] = Training()"
GOOD = "signals.Path('/data/_actor/global_step7')"
ADVICE = "the last good checkpoint is /data/_actor/global_step7 (step 7): start again with --ckpt.load_enable to go on from it"


@pytest.fixture
def run(tmp_path):
    """run(body, *signals) -> (exit code, lines): of a process that is sent these, each after a pause of seconds or at a word."""
    folder = tmp_path / "run"
    folder.mkdir()

    def start(
        body,
        *moments,
        before=GENERATES,
        grace=1000.0,
        good=GOOD,
        saves=5,
        ignored=0,
        loads=False,
        holds=False,
        python="-uc",
    ):
        names = {"paths": PATHS, "folder": str(folder), "grace": grace, "good": good, "saves": saves}
        names |= {"loads": loads, "holds": holds}
        program = RUN.format(body=body, before=before, ignored=int(ignored), **names)
        process = subprocess.Popen(
            [sys.executable, python, program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout.readline() == "ready\n", process.stdout.read()
        for moment in moments:
            moment(process) if callable(moment) else process.send_signal(moment)
        lines = [line for line in process.stdout.read().splitlines() if line]
        return process.wait(timeout=120), lines

    start.folder = folder
    return start


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_run_that_gives_its_step_up_ends_in_a_line_with_the_last_good_checkpoint(run, number, code):
    ended, lines = run("wish(); raise GivenUp", number)
    assert ended == code
    assert lines == [
        f"openrlhf_sagc: at {number.name} the run saves the last finished step and ends, in at most 1000 s; so far {ADVICE}",
        f"openrlhf_sagc: ended by {number.name}: {ADVICE}",
    ]


def test_without_a_checkpoint_the_line_says_so(run):
    ended, lines = run("wish(); raise GivenUp", signal.SIGTERM, good=None)
    assert (ended, lines[-1]) == (
        143,
        "openrlhf_sagc: ended by SIGTERM: there is no checkpoint to go on from: start again",
    )


def test_a_run_that_has_begun_no_step_ends_at_once(run):
    ended, lines = run("time.sleep(1000)", signal.SIGTERM, before="pass")
    assert ended == 143 and lines == [
        f"openrlhf_sagc: at SIGTERM the run ends; so far {ADVICE}",
        f"openrlhf_sagc: ended by SIGTERM: {ADVICE}",
    ]


@pytest.mark.parametrize(
    "training, waits",
    [
        ("Training(time.time(), 10.0)", True),
        ("Training(time.time() - 900.0, 1800.0)", True),
        ("Training(time.time(), None)", True),
        ("Training(time.time(), 1100.0)", False),
        ("Training(time.time() - 900.0, 2000.0)", False),
    ],
)
def test_a_step_in_training_is_finished_if_its_usual_seconds_fit(run, training, waits):
    ended, lines = run(
        "time.sleep(1000)" if not waits else "wish(); raise GivenUp",
        signal.SIGTERM,
        before=f"told[Training] = {training}",
    )
    assert ended == 143 and ("saves the last finished step" in lines[0]) == waits


def test_a_run_that_is_not_over_in_time_ends(run):
    ended, lines = run("wish(); time.sleep(1000)", signal.SIGTERM, grace=0.2)
    assert ended == 143 and lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {ADVICE}"


def test_a_second_signal_ends_at_once_unless_it_comes_with_the_first(run):
    def soon(process):
        for _ in range(3):  # of one kind: Python handles those that are pending together by their numbers
            process.send_signal(signal.SIGTERM)

    body = "wish(); signals.SECOND = {}; time.sleep({}); os.kill(os.getpid(), signal.SIGINT); time.sleep({}); raise GivenUp"
    ended, lines = run(body.format(1000.0, 1, 1), soon)
    assert ended == 143 and len(lines) == 2
    ended, lines = run(body.format(0.0, 0, 1000), signal.SIGTERM)
    assert ended == 143 and lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {ADVICE}"


def test_a_run_that_no_interrupt_reaches_ends_all_the_same(run):
    stuck = """signals.STUCK = 0.1
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            pass"""
    ended, lines = run(stuck, signal.SIGTERM, grace=0.0)
    assert ended == 143 and lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {ADVICE}"


def test_a_signal_that_was_ignored_stays_ignored(run):
    """As under nohup."""
    body = "os.kill(os.getpid(), signal.SIGHUP); time.sleep(1); os.kill(os.getpid(), signal.SIGTERM); wish(); raise GivenUp"
    ended, lines = run(body, ignored=signal.SIGHUP)
    assert ended == 143 and lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {ADVICE}"
    ended, lines = run("time.sleep(2)", signal.SIGHUP, ignored=signal.SIGHUP)
    assert (ended, lines) == (0, ["finished []"])


def test_usr1_asks_for_a_checkpoint_and_the_run_goes_on(run):
    ended, lines = run("wish('saves')", signal.SIGUSR1)
    assert (ended, lines) == (0, ["finished [Wish(end=False, may_save=True, saves=1)]"])


def test_a_file_stands_for_a_signal_and_one_of_before_does_not(run):
    file = run.folder / "openrlhf_sagc.signal"
    file.write_text("TERM")
    ended, lines = run(
        "wish(); raise GivenUp",
        lambda _: (time.sleep(1), file.write_text("USR1\n"), time.sleep(1), file.write_text("TERM\n")),
    )
    assert ended == 143 and "SIGTERM" in lines[-1] and not file.exists()


def test_a_run_that_is_over_just_in_time_is_not_interrupted_any_more(run):
    """Its process still has work to do then, as Ray has at its end."""
    ended, lines = run("wish(); time.sleep(0.8)\ntime.sleep(1.5)", signal.SIGTERM, grace=1.0)
    assert (ended, lines[-1][:8]) == (0, "finished")


def test_a_deadline_that_comes_while_ray_is_closed_takes_the_line_not_away(run):
    slow = f"{GENERATES}; signals.ray.shutdown = lambda: time.sleep(2)"
    ended, lines = run("wish(); time.sleep(1); raise GivenUp", signal.SIGTERM, before=slow, grace=2.0)
    assert ended == 143 and lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {ADVICE}"


@pytest.mark.parametrize("gone", ["1 / 0", "time.sleep(1000)"])
def test_a_signal_is_heard_where_ray_is_gone(run, gone):
    """As where a scheduler ends Ray's processes too."""
    ended, lines = run("time.sleep(1000)", signal.SIGTERM, before=f"signals.tell = signals.told = lambda _: {gone}")
    assert ended == 143 and lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {ADVICE}"


def test_what_nobody_has_heard_is_told_again(run):
    """As before Ray is there."""
    deaf = f"{GENERATES}; signals.tell = lambda word: heard.append(word) or len(heard) > 3"
    body = "wish(); print([word.saves for word in heard if not word.end]); raise GivenUp"
    ended, lines = run(body, signal.SIGUSR1, lambda _: time.sleep(4), signal.SIGTERM, before=deaf)
    assert ended == 143 and "[1, 1, 1, 1]" in lines


def test_a_file_that_is_no_text_keeps_no_signal_back(run):
    def garbled(_):
        (run.folder / "openrlhf_sagc.signal").write_bytes(b"\xff")
        time.sleep(1)

    ended, lines = run("wish(); raise GivenUp", garbled, signal.SIGTERM)
    assert ended == 143 and "SIGTERM" in lines[-1]


@pytest.mark.parametrize("body, grace", [("wish(); raise GivenUp", 1000.0), ("time.sleep(1000)", 0.0)])
def test_a_run_whose_lines_nobody_reads_any_more_ends_as_others_do(run, body, grace):
    """As one behind `| tee`, which Ctrl-C ends too, or in a terminal that was closed."""

    def unread(process):
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        process.stdout = io.StringIO()

    assert run(body, unread, grace=grace) == (130, [])
    assert run(f"print('what is left to be written'); {body}", unread, grace=grace, python="-Ec") == (130, [])


def test_a_run_that_ends_by_itself_ends_as_it_would(run):
    assert run("wish()", signal.SIGTERM)[0] == 0
    ended, lines = run("raise ValueError('of the run')")
    assert ended == 1 and lines[-1] == "ValueError: of the run"


@pytest.mark.parametrize(
    "others, loads, holds, saved, line",
    [
        ([], False, False, True, ADVICE),
        (["_actor/global_step3"], False, False, False, "there is no checkpoint to go on from: start again"),
        ([], False, True, True, ADVICE),  # it would have gone on from a checkpoint, and found none
        (["_actor/global_step3"], True, True, True, ADVICE),
        (["_actor/global_step3"], True, False, False, ADVICE),  # read-only
    ],
)
def test_a_run_without_checkpoints_saves_where_there_are_none_of_others(run, others, loads, holds, saved, line):
    for name in ["", *others]:
        os.makedirs(run.folder / "checkpoints" / name, exist_ok=True)
    ended, lines = run("print(wish()); raise GivenUp", signal.SIGTERM, saves=-1, loads=loads, holds=holds)
    assert ended == 143 and f"Wish(end=True, may_save={saved}, saves=0)" in lines
    assert lines[-1] == f"openrlhf_sagc: ended by SIGTERM: {line}"


def test_ray_does_not_take_the_signal_away():
    """Its own handler would raise in the middle of its calls, which end with abort()."""
    from ray._private import utils

    from openrlhf_sagc.run.ray_start import started

    def init():
        utils.set_sigterm_handler(lambda *_: sys.exit(15))

    before = signal.getsignal(signal.SIGTERM)
    try:
        for own in (signal.SIG_IGN, print):
            signal.signal(signal.SIGTERM, own)
            started(init)
            assert signal.getsignal(signal.SIGTERM) is own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # of commands that do not see to it
        started(init)
        assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)

"""Verdicts for threads of an engine, whatever happens to the processes that find them."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
from compared_by import comparisons

from openrlhf_sagc.grading import algebra

HANGS = "while True: pass"
QUICK = "process.FIRST_SECONDS, process.OWN_SECONDS = 0.3, 1"
RIGHT, WRONG = "done = True", "done = False"


@pytest.fixture(scope="module")
def shared():
    """The comparisons that the reward uses, for the tests of this module."""
    yield algebra._shared
    algebra._shared.comparisons.close()
    algebra._begin_anew()


def children_at_work(running, busy):
    """The comparing process with those that it has forked, once there are some, and one of them computes if need be."""
    process = psutil.Process(running._process.pid)
    with suppress(psutil.NoSuchProcess):
        forked = process.children()
        if forked and (not busy or any(one.cpu_times().user > 0.1 for one in forked)):
            return process, forked


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_threads_get_verdicts_and_only_true_and_false_are_remembered(shared, monkeypatch):
    pairs = {("1", r"\frac{2}{2}"): True, ("1", "2-2"): False, ("x+1", "1+x"): True}
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda pair: algebra.equal_by_algebra(*pair), list(pairs) * 3)) == 3 * list(
            pairs.values()
        )
    asked = []
    monkeypatch.setattr(shared.comparisons, "ask", lambda *pair: asked.append(pair) or concurrent.futures.Future())
    assert algebra.equal_by_algebra("1", "2-2") is False and not asked
    failed = concurrent.futures.Future()
    failed.set_result(None)
    shared.verdicts["1", "?"] = failed
    monkeypatch.setattr(algebra, "WAITING_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="no verdict on two answers in 0.1 s"):
        algebra.equal_by_algebra("1", "?")  # asked again
    assert asked == [("1", "?")]


def test_the_oldest_verdicts_are_forgotten(shared, monkeypatch):
    monkeypatch.setattr(algebra, "REMEMBERED", 2)
    shared.verdicts.clear()
    for answer in ("1+1", "1+2", "1+3"):
        algebra.equal_by_algebra("2", answer)
    assert list(shared.verdicts) == [("2", "1+2"), ("2", "1+3")]


def test_answers_that_hang_cost_others_nothing_but_a_short_wait():
    with comparisons(QUICK, processes=2) as running:
        hanging = [running.ask(str(i), HANGS) for i in range(28)]
        right = running.ask("1", RIGHT)
        assert right.result(300) is True and not any(verdict.done() for verdict in hanging[10:])
        late = running.ask("2", RIGHT)  # second tries run by now, and leave a process to it
        assert late.result(300) is True and not all(verdict.done() for verdict in hanging)
        assert [verdict.result(300) for verdict in hanging[:3]] == [None] * 3


def test_waiting_is_no_part_of_a_comparisons_seconds():
    """One that needs more than the first try gets a whole second one, however many wait."""
    slow = "import time\nwhile time.process_time() < 0.7: pass\ndone = True"
    with comparisons(QUICK, processes=1) as running:
        verdicts = [running.ask(str(i), slow) for i in range(4)]
        assert [verdict.result(300) for verdict in verdicts] == [True] * 4


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("child", [False, True])
def test_a_process_that_is_killed_costs_one_retry(busy, child):
    with comparisons() as running:
        assert running.ask("", RIGHT).result(100) is True
        slow = "import time\nwhile time.process_time() < 0.5: pass\ndone = True"
        asked = [running.ask(f"slow {i}", slow) for i in range(8 * busy)]  # some, or all may be over before we look
        process, forked = wait_until(lambda: children_at_work(running, busy))
        for one in forked if child else [process]:
            one.kill()
        assert running.ask("1", RIGHT).result(100) is True and running.ask("2", WRONG).result(100) is False
        assert all(one.result(100) is True for one in asked)


def test_a_comparison_that_kills_the_process_twice_is_given_up():
    with comparisons("real = process.Comparisons.add", "def add(self, one):", "    if one.gold: os._exit(3)", "    real(self, one)",
                     "process.Comparisons.add = add") as running:  # fmt: skip
        with pytest.raises(RuntimeError, match="it ended with exit code 3"):
            running.ask("dies", RIGHT).result(100)
        assert running.ask("", RIGHT).result(100) is True


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sys.modules['pyseccomp'] = None", "apt-get install libseccomp2 && pip install pyseccomp"),
        ("os.write(int(sys.argv[3]), b'{'); os.abort()", "it ended with exit code -6"),
    ],
)
def test_processes_that_cannot_work_are_no_wrong_answers(line, message):
    with comparisons(line) as running:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="math-verify cannot be run in a process of its own: .*" + message):
                running.ask("1", RIGHT).result(100)


def test_libraries_may_print():
    with comparisons("print('hello', flush=True)") as running:
        assert running.ask("", RIGHT).result(100) is True


def test_a_process_that_is_killed_while_it_starts_costs_one_retry():
    with comparisons("time.sleep(1)") as running:
        verdict = running.ask("", RIGHT)
        running._process.kill()
        assert verdict.result(100) is True


def test_what_is_asked_of_a_closed_process_ends():
    with comparisons() as running:
        verdicts = [running.ask("", HANGS) for _ in range(3)]
    for verdict in verdicts:
        with pytest.raises(RuntimeError, match="the comparisons were closed"):
            verdict.result(10)


def test_without_an_interpreter_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(sys, "executable", "nowhere/python")
    with comparisons() as running, pytest.raises(RuntimeError, match="process of its own: .*nowhere/python"):
        running.ask("", RIGHT).result(10)


def test_a_start_that_hangs_ends(monkeypatch):
    monkeypatch.setattr(algebra, "START_SECONDS", 1)
    with comparisons("time.sleep(1000)") as running, pytest.raises(RuntimeError, match="exit code -9"):
        running.ask("1", RIGHT).result(100)


def test_the_process_has_no_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with comparisons() as running:
        code = "import os; done = os.environ.keys() <= {'LC_CTYPE'}"  # which Python sets itself
        assert running.ask("", code).result(100) is True
        with open(f"/proc/{running._process.pid}/environ", "rb") as file:
            assert file.read() == b""


def test_thousands_at_once_do_not_block():
    with comparisons(
        "process.Comparisons.add = lambda self, one: self._say({'id': one.id, 'verdict': True})"
    ) as running:
        verdicts = [running.ask("x" * 500, RIGHT) for _ in range(20_000)]
        assert all(verdict.result(100) is True for verdict in verdicts)


def test_a_forked_process_has_comparisons_of_its_own(shared):
    assert algebra.equal_by_algebra("4", "2+2")
    pid = os.fork()
    if pid == 0:
        os._exit(not (algebra._shared is not shared and algebra.equal_by_algebra("4", "1+3")))
    assert os.waitpid(pid, 0)[1] == 0


def test_processes_end_with_an_engine_that_is_killed():
    code = f"""if True:
        import sys, time
        sys.path.insert(0, {os.path.dirname(comparisons.__wrapped__.__code__.co_filename)!r})
        from compared_by import comparisons
        with comparisons() as running:
            running.ask("", {HANGS!r})
            assert running.ask("", {RIGHT!r}).result(100)
            print(running._process.pid, flush=True)
            time.sleep(1000)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as engine:
        process = psutil.Process(int(engine.stdout.readline()))
        processes = [process, *process.children()]
        assert len(processes) > 1
        engine.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(processes, timeout=60)
    for one in alive:
        one.kill()
    assert not alive

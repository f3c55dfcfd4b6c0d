"""Verdicts for threads of an engine, whatever happens to the processes that find them."""

import concurrent.futures
import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from compared_by import comparisons, until

from openrlhf_sagc.grading import algebra
from openrlhf_sagc.math_reward import reward_func

HANGS = "while True: pass"
ENDLESS = "process.TRIES, process.OWN_SECONDS = (1000,) * 3, 1000"
RIGHT, WRONG = "done = True", "done = False"


@pytest.fixture(scope="module")
def shared():
    """The comparisons that the reward uses, for the tests of this module."""
    yield algebra._comparisons
    algebra._comparisons.close()


def test_threads_get_verdicts_and_only_true_and_false_are_remembered(shared, monkeypatch):
    pairs = {("1", r"\frac{2}{2}"): True, ("1", "2-2"): False, ("x+1", "1+x"): True}
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        verdicts = threads.map(algebra.equal_by_algebra, *zip(*list(pairs) * 3))
        assert list(verdicts) == 3 * list(pairs.values())
    asked, futures = [], [concurrent.futures.Future() for _ in range(3)]
    monkeypatch.setattr(shared, "ask", lambda *pair: asked.append(pair) or futures[len(asked) - 1])
    assert algebra.equal_by_algebra("1", "2-2") is False and not asked
    futures[0].set_result(None)
    futures[1].set_exception(RuntimeError("gone"))
    futures[2].set_result(True)
    assert algebra.equal_by_algebra("1", "?") is None
    with pytest.raises(RuntimeError, match="gone"):
        algebra.equal_by_algebra("1", "?")
    assert [algebra.equal_by_algebra("1", "?") for _ in range(2)] == [True, True] and asked == [("1", "?")] * 3
    assert algebra._verdict.cache_info().maxsize * 2 * 1000 * 4 < 64 << 20  # bytes of answers


def test_a_stopped_comparison_is_no_failed_reward(shared, monkeypatch):
    stopped, late = concurrent.futures.Future(), concurrent.futures.Future()
    stopped.set_result(None)
    monkeypatch.setattr(shared, "ask", lambda gold, answer: stopped if "y" in answer else late)
    monkeypatch.setattr(algebra, "WAITING_SECONDS", 0.1)
    result = reward_func([r"\boxed{1+y}", r"\boxed{1+z}", r"\boxed{5}", ""], [""] * 4, ["5"] * 4)
    assert result["rewards"].tolist() == [0, 0, 1, 0]
    assert result["extra_logs"]["comparison_stopped"].tolist() == [1, 1, 0, 0]


def test_64_answers_that_hang_delay_others_by_little():
    with comparisons("process.OWN_SECONDS = 1000") as running:
        hanging = [running.ask(str(number), HANGS) for number in range(64)]
        right = [running.ask(str(number), RIGHT) for number in range(20)]
        assert [verdict.result(300) for verdict in right] == [True] * 20
        assert not any(verdict.done() for verdict in hanging)


def test_last_tries_leave_others_a_process():
    def in_last_tries():
        with suppress(psutil.NoSuchProcess):
            seconds = [one.cpu_times().user for one in psutil.Process(running._process.pid).children()]
            return len(seconds) == 3 and min(seconds) > 1.2

    with comparisons("process.TRIES, process.OWN_SECONDS = (1, 0.1, 1000), 1000") as running:
        hanging = [running.ask(str(number), HANGS) for number in range(8)]
        until(in_last_tries, 300)
        assert running.ask("", RIGHT).result(100) is True and running.ask("", WRONG).result(100) is False
        assert not any(verdict.done() for verdict in hanging)


def test_a_comparison_ends_by_its_own_seconds_and_the_clock_and_waiting_is_no_part_of_these():
    """One that needs more than its first tries gets a whole last one, however many wait."""
    slow = "import time\nwhile time.process_time() < 0.7: pass\ndone = True"
    with comparisons("process.TRIES = (0.1, 0.1, 1000)", processes=1) as running:
        verdicts = [running.ask(str(number), code) for number, code in enumerate([slow, slow, slow, HANGS, "1 / 0"])]
        assert [verdict.result(300) for verdict in verdicts] == [True] * 3 + [None] * 2
    with comparisons("process.TRIES, process.OWN_SECONDS = (0.1, 0.1, 0.1), 1000") as running:
        assert running.ask("", HANGS).result(300) is None


@pytest.mark.parametrize("killed", ["idle process", "busy process", "child"])
def test_a_process_that_is_killed_costs_one_retry(killed):
    def at_work():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(running._process.pid)
            busy = [one for one in process.children() if one.cpu_times().user > 0.1]
            return busy[:1] if killed == "child" else [process] if busy or not asked else []

    with comparisons(ENDLESS) as running:
        assert running.ask("", RIGHT).result(100) is True
        slow = "import time\nwhile time.process_time() < 0.5: pass\ndone = True"
        asked = [running.ask(f"slow {number}", slow) for number in range(8 * (killed != "idle process"))]
        until(at_work)[0].kill()
        assert running.ask("1", RIGHT).result(100) is True and running.ask("2", WRONG).result(100) is False
        assert all(one.result(100) is True for one in asked)


def test_a_comparison_that_kills_the_process_again_and_again_is_given_up():
    start = "start = process.Comparisons.start_what_may_run"
    dies = "lambda self: os._exit(3) if any(b'dies' in one for one in self.waiting[0]) else start(self)"
    with comparisons(start, f"process.Comparisons.start_what_may_run = {dies}") as running:
        with pytest.raises(RuntimeError, match="it ended with exit code 3"):
            running.ask("dies", RIGHT).result(100)
        assert running.ask("", RIGHT).result(100) is True


def test_a_process_that_dies_after_every_verdict_costs_none():
    dies = "process.Comparisons.hear = lambda self, pipe: hear(self, pipe) or os._exit(3)"
    with comparisons("hear = process.Comparisons.hear", dies) as running:
        verdicts = [running.ask(str(number), RIGHT) for number in range(4)]
        assert [verdict.result(300) for verdict in verdicts] == [True] * 4


BROKEN = {
    "apt-get install libseccomp2 && pip install pyseccomp": "sys.modules['pyseccomp'] = None",
    "it ended with exit code -6": "os.write(int(sys.argv[2]), b'{'); os.abort()",
    "it ended with exit code -9": "time.sleep(1000)",
    "nowhere/python": "",
}


@pytest.mark.parametrize("message", BROKEN)
def test_processes_that_cannot_work_are_no_wrong_answers(message, monkeypatch):
    monkeypatch.setattr(algebra, "START_SECONDS", 1 if "-9" in message else 100)
    monkeypatch.setattr(sys, "executable", message if "nowhere" in message else sys.executable)
    with comparisons(BROKEN[message]) as running:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="math-verify cannot be run in a process of its own: .*" + message):
                running.ask("1", RIGHT).result(100)


def test_what_is_asked_of_a_closed_process_ends():
    with comparisons() as running:
        verdicts = [running.ask(str(number), HANGS) for number in range(3)]
        assert running.ask("1", HANGS) is verdicts[1]  # one that is awaited is asked once
    for verdict in verdicts:
        with pytest.raises(RuntimeError, match="the comparisons were closed"):
            verdict.result(10)


def test_the_process_has_no_environment_and_may_print_and_die_while_it_starts(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    with comparisons("print('hello', flush=True)", "time.sleep(1)") as running:
        verdict = running.ask("", "import os; done = os.environ.keys() <= {'LC_CTYPE'}")  # which Python sets itself
        running._process.kill()
        assert verdict.result(100) is True
        with open(f"/proc/{running._process.pid}/environ", "rb") as file:
            assert file.read() == b""


def test_thousands_at_once_do_not_block():
    says = "lambda self: self.waiting[0] and self._connection.send_bytes(b'1' + self.waiting[0].popleft())"
    with comparisons(f"process.Comparisons.start_what_may_run = {says}") as running:
        verdicts = [running.ask(f"{number:500}", RIGHT) for number in range(20_000)]
        assert all(verdict.result(100) is True for verdict in verdicts)


def test_a_forked_process_has_comparisons_of_its_own(shared):
    assert algebra.equal_by_algebra("4", "2+2")
    pid, process = os.fork(), shared._process
    if pid == 0:
        os._exit(not (algebra.equal_by_algebra("4", "1+3") and shared._process is not process))
    assert os.waitpid(pid, 0)[1] == 0


def test_processes_end_with_an_engine_that_is_killed():
    code = f"""if True:
        import time
        from compared_by import comparisons
        with comparisons({ENDLESS!r}) as running:
            running.ask("", {HANGS!r})
            assert running.ask("", {RIGHT!r}).result(100)
            print(running._process.pid, flush=True)
            time.sleep(1000)
    """
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=paths) as engine:
        process = psutil.Process(int(engine.stdout.readline()))
        processes = [process, *process.children()]
        assert len(processes) > 1
        engine.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not [one.kill() or one for one in alive]

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
from compared_by import comparisons, until

from openrlhf_sagc.grading import algebra
from openrlhf_sagc.math_reward import reward_func

HANGS = "while True: pass"
ENDLESS = "process.OWN_SECONDS = 1000"
RIGHT, WRONG = "done = True", "done = False"


def test_threads_get_verdicts_and_only_true_and_false_are_remembered(monkeypatch):
    pairs = {("1", r"\frac{2}{2}"): True, ("1", "2-2"): False, ("x+1", "1+x"): True}
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        verdicts = threads.map(algebra.equal_by_algebra, *zip(*list(pairs) * 3))
        assert list(verdicts) == 3 * list(pairs.values())
    said = [b"", b"", b"", b"1"]
    monkeypatch.setattr(algebra, "_said", lambda *_: said.pop(0))
    assert algebra.equal_by_algebra("1", "2-2") is False
    with pytest.raises(TimeoutError):
        algebra.equal_by_algebra("1", "?")
    assert [algebra.equal_by_algebra("1", "?") for _ in range(2)] == [True, True]
    assert algebra.equal_by_algebra.cache_info().maxsize * 2 * 1000 * 4 < 64 << 20  # bytes of answers


def test_a_stopped_comparison_is_no_failed_reward(monkeypatch):
    monkeypatch.setattr(algebra, "_said", lambda *_: b"")
    result = reward_func([r"\boxed{1+y}", r"\boxed{1+z}", r"\boxed{5}", ""], [""] * 4, ["5"] * 4)
    assert result["rewards"].tolist() == [0, 0, 1, 0]
    assert result["extra_logs"]["comparison_stopped"].tolist() == [1, 1, 0, 0]
    monkeypatch.setattr(algebra, "WAITING_SECONDS", 0)
    monkeypatch.setattr(algebra._comparisons, "_busy", 4)
    with pytest.raises(TimeoutError):
        algebra.equal_by_algebra("1", "1+u")


def test_64_answers_that_hang_delay_others_by_little():
    with comparisons("process.OWN_SECONDS = 1000") as running:
        hanging = [running.ask(str(number), HANGS) for number in range(64)]
        right = [running.ask(str(number), RIGHT) for number in range(20)]
        assert [verdict.result(300) for verdict in right] == [True] * 20
        assert not any(verdict.done() for verdict in hanging)


def test_fresh_ones_go_first():
    running = algebra.Comparisons(3)

    def turn(tries):
        return running._has_turn(tries, time.monotonic())

    assert [turn(2), turn(2), turn(2), turn(1), turn(0)] == [True, True, False, True, False]
    running._busy, running._waiting[0] = 1, 1
    assert not turn(1) and turn(0)


def test_last_tries_leave_others_a_process(monkeypatch):
    def in_last_tries():
        with suppress(psutil.NoSuchProcess, AttributeError):
            seconds = [one.cpu_times().user for one in psutil.Process(running._process.pid).children()]
            return len(seconds) == 3 and min(seconds) > 1.2

    monkeypatch.setattr(algebra, "TRIES", (1, 0.1, 1000))
    with comparisons(ENDLESS) as running:
        hanging = [running.ask(str(number), HANGS) for number in range(8)]
        until(in_last_tries, 300)
        assert running.ask("", RIGHT).result(100) is True and running.ask("", WRONG).result(100) is False
        assert not any(verdict.done() for verdict in hanging)


def test_a_comparison_ends_by_its_own_seconds_and_the_clock_and_waiting_is_no_part_of_these(monkeypatch):
    """One that needs more than its first tries gets a whole last one, however many wait."""
    slow = "import time\nwhile time.process_time() < 0.7: pass\ndone = True"
    monkeypatch.setattr(algebra, "TRIES", (0.1, 0.1, 1000))
    with comparisons(processes=1) as running:
        verdicts = [running.ask(str(number), code) for number, code in enumerate([slow, slow, slow, HANGS, "1 / 0"])]
        assert [verdict.result(300) for verdict in verdicts] == [True] * 3 + [None] * 2
    monkeypatch.setattr(algebra, "TRIES", (0.1, 0.1, 0.1))
    with comparisons(ENDLESS) as running:
        assert running.ask("", HANGS).result(300) is None


@pytest.mark.parametrize("killed", ["idle process", "busy process", "child"])
def test_a_process_that_is_killed_costs_one_retry(killed, monkeypatch):
    def at_work():
        with suppress(psutil.NoSuchProcess, AttributeError):
            process = psutil.Process(running._process.pid)
            busy = [one for one in process.children() if one.cpu_times().user > 0.1]
            return busy[:1] if killed == "child" else [process] if busy or not asked else []

    monkeypatch.setattr(algebra, "TRIES", (1000,) * 3)
    with comparisons(ENDLESS) as running:
        assert running.ask("", RIGHT).result(100) is True
        slow = "import time\nwhile time.process_time() < 0.5: pass\ndone = True"
        asked = [running.ask(f"slow {number}", slow) for number in range(8 * (killed != "idle process"))]
        until(at_work)[0].kill()
        assert running.ask("1", RIGHT).result(100) is True and running.ask("2", WRONG).result(100) is False
        assert all(one.result(100) is True for one in asked)


def test_a_comparison_that_kills_the_process_again_and_again_is_given_up():
    dies = "lambda request, *rest: os._exit(3) if b'dies' in request else compare(request, *rest)"
    with comparisons("compare = process.compare", f"process.compare = {dies}") as running:
        with pytest.raises(RuntimeError, match="it ended with exit code 3"):
            running.ask("dies", RIGHT).result(100)
        assert running.ask("", RIGHT).result(100) is True


def test_a_forked_process_has_comparisons_of_its_own():
    assert algebra.equal_by_algebra("4", "2+2")
    pid, process = os.fork(), algebra._comparisons._process
    if pid == 0:
        os._exit(not (algebra.equal_by_algebra("4", "1+3") and algebra._comparisons._process is not process))
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

"""The end of a run at a signal: it saves what is finished, says from where it can go on, and ends in time."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import ray

from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.run.checkpoints import last_whole, step_of
from openrlhf_sagc.run.output_folders import held, saves
from openrlhf_sagc.run.wishes import LOOK, Training, Wish, tell, told

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAVES = signal.SIGUSR1
FILE = "openrlhf_sagc.signal"  # in --ckpt.output_dir: the name of a signal, from who cannot send one to this process
SECOND = 5.0  # seconds after which another signal ends the run at once; one soon after the first is the same wish
STUCK = 3.0  # seconds in which Python may act on an interrupt
ANSWER = 5.0  # seconds in which Ray's head answers
SHUTDOWN = 3.0  # seconds in which Ray's connection is closed


@contextmanager
def ended_by_signals(args: Settings, is_held: bool = False) -> Iterator[None]:
    """Run in the command's process, around all that uses Ray: at a signal the run ends within --ckpt.grace_seconds.

    It ends in one line that names the last good checkpoint. SIGUSR1 lets it save after the step under way, and go on. A
    signal that was ignored before stays ignored.

    Args:
        args: OpenRLHF's; --ckpt.load_enable where the run goes on from a checkpoint.
        is_held: the run holds --ckpt.path.

    Raises:
        SystemExit: of 128 and the signal's number.
    """
    with ExitStack() as stack:
        ending = _Ending(args, stack, is_held)
        for number in (*ENDS, SAVES):
            usual = signal.signal(number, ending.hear)
            stack.callback(signal.signal, number, signal.SIG_DFL if usual is None else usual)  # None: not Python's own
            if usual is signal.SIG_IGN:
                ending.ignored.add(number)
        stack.callback(ending.over.set)
        threading.Thread(target=ending.watch, name="signals", daemon=True).start()
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if ending.signal is None:
                raise
            ending.over.set()  # nothing interrupts it any more
            _answer_of(ray.shutdown, seconds=SHUTDOWN)  # what its processes say at their end comes before the line
            _say(ending.line())
            _let_go_of_dead_pipes()
            raise SystemExit(128 + ending.signal) from error


class _Ending:
    """What has been heard, and what comes of it."""

    def __init__(self, args: Settings, stack: ExitStack, is_held: bool) -> None:
        self._args, self._stack, self._is_held = args, stack, is_held
        self._has_own = saves(args) or args.ckpt.load_enable  # checkpoints in --ckpt.path, or those that will be there
        self._heard: SimpleQueue[int] = SimpleQueue()
        self._file = Path(args.ckpt.output_dir, FILE)
        self._file.unlink(missing_ok=True)  # of an earlier run
        self._interrupts = False
        self.signal: int | None = None  # that ends the run
        self.ignored: set[int] = set()
        self.over = threading.Event()

    def hear(self, number: int, frame: Any) -> None:
        """The handler of all these signals. It may run in the middle of a call of Ray's, so it does next to nothing."""
        if self._interrupts and number == SAVES:
            raise KeyboardInterrupt
        if number not in self.ignored:
            self._heard.put(number)

    def watch(self) -> None:
        """Do what signals ask for until the run is over."""
        wish, is_told, first, deadline = Wish(), True, 0.0, 0.0
        while not self.over.is_set():
            number, now = self._next(), time.monotonic()
            if number == SAVES:
                wish, is_told = wish._replace(saves=wish.saves + 1), False
            elif number is not None and self.signal is None:
                self.signal, first = number, now
                wish, is_told = wish._replace(end=True, may_save=self._may_save()), False
                deadline = now + (self._args.ckpt.grace_seconds if self._is_worth_waiting() else 0.0)
                _say(f"\nopenrlhf_sagc: {self._seen(deadline - now)}")  # before the run's last line
            elif number is not None and now - first >= SECOND:
                deadline = now
            is_told = is_told or bool(_answer_of(tell, wish))  # again at the next look, until Ray is there and answers
            if self.signal is not None and time.monotonic() >= deadline and not self.over.is_set():
                return self._interrupt(self.signal)

    def _next(self) -> int | None:
        """The next signal, or what stands for one in the file; None if there is none for a moment."""
        with suppress(Empty):
            return self._heard.get(timeout=LOOK)
        with suppress(OSError, KeyError, ValueError):  # the last one is of what is no text
            number = signal.Signals[f"SIG{self._file.read_text().strip()}"]
            self._file.unlink()
            return number if number in (*ENDS, SAVES) else None
        return None

    def _may_save(self) -> bool:
        """Whether the run's checkpoints disturb nobody's: a run without any may not have held --ckpt.path so far."""
        if self._args.ckpt.disable_ds or saves(self._args):
            return not self._args.ckpt.disable_ds
        if self._has_own:
            return self._is_held  # else the folder is read-only
        path = Path(self._args.ckpt.path)
        with suppress(OSError, SystemExit):
            path.mkdir(parents=True, exist_ok=True)
            if not self._is_held:
                self._stack.enter_context(held("--ckpt.path", str(path)))
            self._has_own = not any(path.glob("_*/*global_step*"))
        return self._has_own

    def _is_worth_waiting(self) -> bool:
        """Whether something can be saved: the trainer has begun, and what it trains will be over in time."""
        training: Training | None = _answer_of(told, Training)
        if training is None:
            return False
        if training.since is None or training.usual is None:
            return True
        return training.since + training.usual - time.time() <= self._args.ckpt.grace_seconds

    def _interrupt(self, number: int) -> None:
        """End the main thread, whatever it waits for."""
        main = threading.main_thread().ident
        assert main is not None
        self._interrupts = True
        signal.pthread_kill(main, SAVES)
        if not self.over.wait(STUCK):
            _say(self.line())
            os._exit(128 + number)

    def _seen(self, seconds: float) -> str:
        """What is said at once, since the end may come any time, as three seconds after `ray job stop`."""
        assert self.signal is not None
        does = f"saves the last finished step and ends, in at most {seconds:g} s" if seconds else "ends"
        return f"at {signal.Signals(self.signal).name} the run {does}; so far {self._last_good()}"

    def line(self) -> str:
        """What the run ends with. It stands on a line of its own, since a progress bar may stand on the last one."""
        assert self.signal is not None
        return f"\nopenrlhf_sagc: ended by {signal.Signals(self.signal).name}: {self._last_good()}"

    def _last_good(self) -> str:
        if not self._has_own or (checkpoint := last_whole(self._args)) is None:
            return "there is no checkpoint to go on from: start again"
        return (
            f"the last good checkpoint is {checkpoint} (step {step_of(checkpoint)}): start again with --ckpt.load_enable to "
            "go on from it"
        )


def _say(line: str) -> None:
    """On stderr, of which nobody may be left to read: a terminal that was closed, a `tee` that Ctrl-C has ended."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _let_go_of_dead_pipes() -> None:
    """Python's exit code would be 120 where nobody is left to read its last words."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _answer_of(function: Callable, *arguments: Any, seconds: float = ANSWER) -> Any:
    """What it returns; None where Ray's head is gone, or does not answer in so many seconds: no end waits for longer."""
    answers: SimpleQueue[Any] = SimpleQueue()

    def ask() -> None:
        answer = None
        try:
            with suppress(Exception):
                answer = function(*arguments)
        finally:
            answers.put(answer)

    threading.Thread(target=ask, name="asks", daemon=True).start()
    with suppress(Empty):
        return answers.get(timeout=seconds)
    return None

"""The trace of a run: a row a rollout, in a CSV file that eval/simulate.py and eval/advise.py read."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

from openrlhf_sagc.argument_checks import TRACE, refuse
from openrlhf_sagc.decisions.records import Group, Prompt, Rollout
from openrlhf_sagc.decisions.step import Step

COLUMNS = ("prompt_id", "sample_id", "tokens", "correct", "truncated", "step", "group_size", "seconds", "stopped")
HEADER = ",".join(COLUMNS).encode() + b"\n"
RIGHT_ABOVE = 0.5  # score of a correct rollout, as eval/evaluate.py has it


class RunTrace:
    """Rows of the rollouts that came back, appended to a file at the end of every step.

    A checkpoint has the file's length. A resumed run cuts the file back to that, since it rolls out again what came
    after it. So a rollout has one row, and none is of a step that was trained anew.

    Args:
        path: of the file; None for no trace.
        warn: called once if rows are lost, which does not end the run.
    """

    def __init__(self, path: str | None, warn: Callable[[str], None]) -> None:
        self._path, self._warn = path, warn
        self._rows: list[str] = []
        self._length = 0  # bytes of the file that are of this run

    def add(self, step: Step, group: Group, rollouts: Sequence[Rollout], responses: Sequence[dict]) -> None:
        """Note all rollouts of a group that is back, stopped ones included, but none that had not begun.

        Args:
            step: in which it came back.
            group: of the prompt.
            rollouts, responses: side by side; a response has `truncated`, and `scores` or `reward` if they are known.
        """
        if self._path is None:
            return
        prompt = prompt_id(group.prompt)
        for place, (rollout, response) in enumerate(zip(rollouts, responses)):
            if not rollout.seconds:
                continue
            ended_early = not rollout.finished or rollout.failure is not None
            row = (
                prompt,
                f"{group.number}-{place}",
                rollout.tokens,
                "" if ended_early else _is_correct(response),
                "" if ended_early else int(bool(response.get("truncated"))),
                step.number + 1,
                group.size,
                f"{rollout.running_seconds:.4g}",
                int(ended_early),
            )
            self._rows.append(",".join(map(str, row)) + "\n")

    def write(self) -> None:
        """Append what was noted, behind the rows that the run has written and no others."""
        if self._path is None:
            return
        rows, self._rows = "".join(self._rows).encode(), []
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "ab+") as file:
                self._cut_back(file)
                file.write(rows if self._length else HEADER + rows)
                self._length = file.seek(0, os.SEEK_END)  # tell() knows nothing of a cut in append mode
        except OSError as error:
            self._warn(f"{TRACE} {self._path} cannot be written to ({error.strerror}): the trace ends here")
            self._path = None

    def _cut_back(self, file) -> None:
        """Leave the rows of this run, whole ones alone if the file has lost some."""
        kept = min(self._length, file.seek(0, os.SEEK_END))
        if kept < self._length:
            file.seek(0)
            kept = file.read(kept).rfind(b"\n") + 1
            self._warn(f"{TRACE} {self._path} has {kept} of {self._length} bytes: rows of earlier steps are missing")
            self._length = kept
        file.truncate(kept)

    def state_dict(self) -> dict[str, int]:
        """What `load_state_dict` needs; empty without a trace."""
        return {} if self._path is None else {"trace_bytes": self._length}

    def load_state_dict(self, state: dict) -> None:
        """Go on behind the rows that the checkpoint knows of; it knows of none if the run had no trace then."""
        self._rows, self._length = [], state.get("trace_bytes", 0)


def prompt_id(prompt: Prompt) -> str:
    """The same for the same text and label, in every episode and run."""
    return hashlib.blake2b(f"{prompt.text}\0{prompt.label}".encode(errors="replace"), digest_size=5).hexdigest()


def _is_correct(response: dict) -> int | str:
    """1 or 0; empty if a reward model gives the score later."""
    score = response.get("reward") if response.get("scores") is None else response["scores"]
    return "" if score is None else int(score > RIGHT_ABOVE)


def check_trace(args: SimpleNamespace) -> None:
    """The trace can be written, and holds no rows of another run; its path is made absolute for the run's processes.

    Raises:
        SystemExit: it cannot or does; the message is one line.
    """
    path = args.rollout.trace
    if path is None:
        return
    refuse(os.path.isdir(path or "."), f"{TRACE} {path} is a folder: give a file")
    args.rollout.trace = os.path.abspath(path)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+") as file:
            file.seek(0)
            first, is_empty = file.readline(), not file.tell()
    except OSError as error:
        raise SystemExit(f"openrlhf_sagc: {TRACE} {path} cannot be written to: {error.strerror}") from None
    refuse(
        not is_empty and first != HEADER,
        f"{TRACE} {path} is not the trace of a run, its first line is {first[:80].decode(errors='replace').strip()!r}: "
        "give another file",
    )
    refuse(
        not is_empty and not args.ckpt.load_enable,
        f"{TRACE} {path} has the rows of another run: give a file of its own, or --ckpt.load_enable to go on with that "
        "run",
    )

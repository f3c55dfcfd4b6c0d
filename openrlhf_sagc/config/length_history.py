"""The lengths of an earlier run's responses, by prompt, from the trace that it wrote."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

REQUIRED = ("prompt_id", "tokens")
MOST_ROLLOUTS = 32  # of a prompt that count: the last ones


def read_history(path: str) -> dict[str, list[float]]:
    """Log tokens of the last rollouts of each prompt, by its id in traces; stopped rollouts are left out.

    Raises:
        ValueError: the file is no trace; the message is one line and says which line of the file is wrong.
    """
    history: dict[str, list[float]] = {}
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            for prompt, tokens in _rows(csv.reader(file)):
                logs = history.setdefault(prompt, [])
                logs.append(math.log(max(tokens, 1)))
                del logs[:-MOST_ROLLOUTS]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {getattr(error, 'strerror', None) or error}") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} {error}") from None
    if not history:
        raise ValueError(f"{path} has no finished rollout: give the --rollout.trace of a run, or drop the flag")
    return history


def _rows(reader) -> Iterator[tuple[str, int]]:
    """(prompt_id, tokens) of each rollout that finished."""
    header = [name.strip() for name in next(reader, [])]
    if missing := [name for name in REQUIRED if name not in header]:
        raise ValueError(f"line 1 has no column {', '.join(missing)}: give the --rollout.trace of a run")
    prompt, tokens = map(header.index, REQUIRED)
    stopped = header.index("stopped") if "stopped" in header else None
    for row in reader:
        if not row or stopped is not None and len(row) > stopped and row[stopped] == "1":
            continue
        if len(row) != len(header):
            raise ValueError(f"line {reader.line_num} has {len(row)} fields, not {len(header)} as line 1")
        word = row[tokens].strip()
        if not (word.isascii() and word.isdecimal() and len(word) < 10):
            raise ValueError(
                f"line {reader.line_num}: tokens must be a whole number below 10^9, got {word or 'nothing'}"
            )
        yield row[prompt], int(word)

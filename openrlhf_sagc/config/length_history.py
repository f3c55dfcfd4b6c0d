"""The lengths of an earlier run's responses, by prompt, from the trace that it wrote or from its checkpoint."""

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path

REQUIRED = ("prompt_id", "tokens")
MOST_ROLLOUTS = 32  # of a prompt that count: the last ones
KEY_DIGITS = 10  # of a prompt's key in a `LengthPredictor`
STATES = "*model_states.pt"  # DeepSpeed's files with what the trainer saves
STEP = re.compile(r"global_step(\d{1,18})")


def read_history(path: str) -> dict[str, list[float]]:
    """Log tokens of rollouts of each prompt, by its id in traces.

    Args:
        path: a trace, of which the last rollouts count that were not stopped; a checkpoint's folder; or a run's --ckpt.path,
            whose last checkpoint is read.

    Raises:
        ValueError: it is neither; the message is one line and says which line of the file is wrong, or what the folder lacks.
    """
    return _of_checkpoint(path) if Path(path).is_dir() else _of_trace(path)


def _of_checkpoint(path: str) -> dict[str, list[float]]:
    """Each prompt's mean log tokens, as often as its rollouts weigh there."""
    import torch

    steps = [folder for folder in Path(path, "_actor").glob("global_step*") if STEP.fullmatch(folder.name)]
    steps.sort(key=lambda folder: int(folder.name.removeprefix("global_step")))
    file = next((file for folder in (Path(path), *reversed(steps)) for file in sorted(folder.glob(STATES))), None)
    if file is None:
        raise ValueError(
            f"{path} has no checkpoint: give a run's --ckpt.path, a checkpoint in it, or the --rollout.trace"
        )
    try:
        # Plain data and tensors only, of which none is read from the disk.
        saved = torch.load(file, weights_only=True, mmap=True, map_location="cpu")
        state = saved.get("samples_generator", {}).get("predictor") or {}
        prompts, drift = state.get("prompts", {}), state.get("drift", 0.0)
        history = {
            key: [total / weight + drift] * max(round(weight), 1)
            for key, (total, weight) in prompts.items()
            if len(key) == KEY_DIGITS  # earlier versions had longer keys, which no prompt has today
        }
    except Exception as error:  # whatever a file of another origin makes of it
        raise ValueError(f"{file} cannot be read as a checkpoint: {str(error).partition(chr(10))[0]:.200}") from None
    if not history:
        raise ValueError(
            f"{file} has no lengths, since its run predicted none: give its --rollout.trace, or drop the flag"
        )
    return history


def _of_trace(path: str) -> dict[str, list[float]]:
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

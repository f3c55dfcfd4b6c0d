"""Loads datasets as OpenRLHF does, and says why where one cannot be loaded: the splits there are, the line of bad JSON."""

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from openrlhf_sagc.config.causes import cause, short
from openrlhf_sagc.config.refusal import refusal, refuse
from openrlhf_sagc.config.settings import Settings

JSON = (".json", ".jsonl")


class Source(NamedTuple):
    """Where a run's prompts come from, as its flags say."""

    flag: str
    names: str | None  # separated by commas
    split_flag: str
    split: str
    probabilities: str | None
    most_rows: int  # of each set, and of all together


def training_source(args: Settings) -> Source:
    """The prompts to train on."""
    data = args.data
    names = ("--data.prompt_dataset", data.prompt_dataset, "--data.prompt_split", data.prompt_split)
    return Source(*names, data.prompt_probs, data.max_samples)


def evaluation_source(args: Settings) -> Source:
    """The prompts of an evaluation."""
    names = ("--eval.dataset", args.eval.dataset, "--eval.split", args.eval.split)
    return Source(*names, None, args.data.max_samples)


def load_prompts(args: Settings):
    """The rows of the training prompts, in the order in which OpenRLHF has them before it shuffles."""
    return _blended(args, training_source(args), args.data.prompt_dataset, args.data.prompt_probs)


def count(args: Settings, source: Source, sets: list[int]) -> int:
    """Rows of all sets together, of which each has so many.

    Raises:
        SystemExit: they cannot be put together; the message is one line.
    """
    if len(sets) == 1:
        return sets[0]
    try:
        return len(_blended(args, source, str(source.names), source.probabilities))
    except Exception as error:
        raise refusal(f"the sets of {source.flag} {source.names} cannot be put together: {cause(error)}") from error


def load_sets(args: Settings, source: Source) -> Iterator[tuple[str, Any]]:
    """(name, rows) of each set, with no more rows than a run takes of it.

    Raises:
        SystemExit: a set cannot be loaded, or the flags do not fit it; the message is one line.
    """
    refuse(
        not source.names,
        f"{source.flag} is not given: name a .jsonl, .json, .csv or .parquet file, or a set on the hub",
    )
    names = str(source.names).split(",")
    refuse(
        any(not name.strip() for name in names),
        f"{source.flag} {source.names} has a comma without a name: use {','.join(filter(str.strip, names))}",
    )
    if source.probabilities is not None:
        _check_probabilities(source, len(names))
    left = source.most_rows
    for name in names:
        try:
            rows = _blended(args, source, name, None)
        except Exception as error:
            raise refusal(_why(source, name.strip(), error)) from error
        refuse(not len(rows), f"{source.flag} {name} has no rows")
        used = rows.select(range(min(left, len(rows))))
        left -= len(used) if source.probabilities is None else 0
        if len(used):
            yield name.strip(), used


def _blended(args: Settings, source: Source, names: str, probabilities: str | None):
    from openrlhf.datasets.utils import blending_datasets

    quiet = SimpleNamespace(args=args, print=lambda *_: None, is_rank_0=lambda: False)
    data = blending_datasets(
        names, probabilities, quiet, args.train.seed, max_count=source.most_rows, dataset_split=source.split
    )
    return data.select(range(min(source.most_rows, len(data))))


def _check_probabilities(source: Source, sets: int) -> None:
    words = str(source.probabilities).split(",")
    flag = f"--data.prompt_probs {source.probabilities}"
    try:
        numbers = [float(word) for word in words if word.strip()]
    except ValueError:
        raise refusal(f"{flag}: use numbers with commas between them, one for each set of {source.flag}") from None
    refuse(
        len(words) != sets,
        f"{flag} has {len(words)} numbers and {source.flag} {sets} sets: give one for each",
    )
    # A set with 0 is never exhausted, and the blending waits until all are.
    refuse(
        len(numbers) != sets or not all(number > 0 for number in numbers) or abs(sum(numbers) - 1) > 1e-8,
        f"{flag}: use numbers above 0 whose sum is 1",
    )


def _why(source: Source, name: str, error: Exception) -> str:
    splits = getattr(error, "obj", None)
    if isinstance(error, AttributeError) and isinstance(splits, dict):
        split = source.split or "''"
        return f"{source.split_flag} {split}: no such split in {name} (there are {', '.join(map(str, splits))})"
    problem = _file_problem(name.partition("@")[0].strip())
    return f"{source.flag} {name} {problem}" if problem else f"{source.flag} {name} cannot be loaded: {cause(error)}"


def _file_problem(path: str) -> str:
    """What is wrong with a file of data that could not be loaded; empty if that is not known."""
    if not os.path.isfile(path):
        return ""
    if not os.path.getsize(path):
        return "is empty"
    if not path.endswith(JSON):
        return ""
    number = 0
    try:
        with open(path, "rb") as file:
            while (start := file.read(1)).isspace() or start == b"\xef":  # of a byte order mark
                pass
            file.seek(0)
            if start == b"[":
                rows = json.loads(file.read().decode("utf-8-sig"))
                return "has no rows" if not rows else ""
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip() and not isinstance(json.loads(text), dict):
                    return f"has no JSON object in line {number}: {short(text, 60)}"
    except json.JSONDecodeError as error:
        return f"is not JSON in line {number or error.lineno}: {error.msg} (column {error.colno})"
    except UnicodeDecodeError as error:
        return f"is not UTF-8 in line {number}: byte {error.start + 1}" if number else "is not UTF-8"
    except RecursionError:
        return f"is nested too deeply in line {number}"
    return "has no rows" if not start else ""

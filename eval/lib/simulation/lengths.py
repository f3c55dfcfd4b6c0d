"""Where simulated rollouts get their lengths from: a trace of real ones, or a distribution."""

import csv
import math
from copy import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np

REQUIRED = ("prompt_id", "sample_id", "tokens")


class Trace:
    """Rollouts of a trace file, by prompt.

    Prompts are drawn with replacement. A group's rollouts are drawn from those of its prompt, together with whether they
    are correct. They are drawn without replacement if the prompt has as many; else all of them come as often as they fit,
    and the rest is drawn without replacement. So a group larger than its prompt's samples has ties, and no rollout longer
    than the longest of them: it has fewer straggler events than a real one.

    Args:
        path: CSV with the columns prompt_id, sample_id, tokens, and optionally correct and truncated (0, 1 or empty;
            correct in all rows or in none). Rows whose `stopped` is 1, in the trace of a run, are left out: their length
            is not known. Other columns are ignored.

    Raises:
        ValueError: the file is no such trace; the message begins with the path and the line's number.
    """

    def __init__(self, path: Path):
        by_prompt: dict[str, list[tuple[int, bool | None]]] = {}
        for prompt, tokens, correct in read_trace(path):
            by_prompt.setdefault(prompt, []).append((tokens, correct))
        rollouts = [rollout for group in by_prompt.values() for rollout in group]
        self.samples_per_prompt = np.array([len(group) for group in by_prompt.values()])
        self._starts = np.cumsum(self.samples_per_prompt) - self.samples_per_prompt
        self._tokens = np.array([tokens for tokens, _ in rollouts])
        self._correct = None if rollouts[0][1] is None else np.array([correct for _, correct in rollouts])
        self.has_correct = self._correct is not None

    @property
    def tokens_by_prompt(self) -> list[np.ndarray]:
        """Response tokens of each prompt's rollouts."""
        return [self._tokens[start : start + count] for start, count in zip(self._starts, self.samples_per_prompt)]

    @property
    def right_by_prompt(self) -> np.ndarray | None:
        """Number of each prompt's rollouts that are correct, if known."""
        if self._correct is None:
            return None
        return np.array([self._correct[s : s + n].sum() for s, n in zip(self._starts, self.samples_per_prompt)])

    def resampled(self, generator: np.random.Generator) -> "Trace":
        """A trace of as many prompts, drawn with replacement, each with all its rollouts."""
        drawn, trace = generator.integers(len(self._starts), size=len(self._starts)), copy(self)
        trace._starts, trace.samples_per_prompt = self._starts[drawn], self.samples_per_prompt[drawn]
        return trace

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[int]:
        """`count` prompts, for `draw_rollouts`."""
        return generator.integers(len(self._starts), size=count).tolist()

    def draw_rollouts(
        self, prompts_B: list[int], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Response tokens [B, size] of a group for each prompt, and whether they are correct [B, size] if known."""
        samples = np.empty((len(prompts_B), size), int)
        for row, prompt in zip(samples, prompts_B):
            count = self.samples_per_prompt[prompt]
            row[:] = self._starts[prompt] + np.resize(generator.permutation(count), size)
        return self._tokens[samples], None if self._correct is None else self._correct[samples]


class LogNormal(NamedTuple):
    """Response tokens exp(N(log median, between^2) + N(0, within^2)); the first term is drawn once a prompt.

    `between` and `within` are standard deviations of log tokens, `cap` is the number of tokens at which a response is cut
    off. `prompts` of them are drawn again and again, as in many episodes; with 0 each is a new one.
    """

    median: float
    between: float
    within: float
    cap: int
    prompts: int = 0
    has_correct = False

    @classmethod
    def parse(cls, words: str) -> "LogNormal":
        """From `lognormal:median=..,between=..,within=..,cap=..[,prompts=..]`.

        Raises:
            ValueError: the text has another form, or a number is out of its range.
        """
        kind, _, settings = words.partition(":")
        form = "lognormal:median=TOKENS,between=SD,within=SD,cap=TOKENS[,prompts=N]"
        try:
            numbers = {name: float(number) for name, number in (word.split("=") for word in settings.split(","))}
        except ValueError:
            raise ValueError(f"{words} does not have the form {form}") from None
        if kind != "lognormal" or numbers.keys() | {"prompts"} != set(cls._fields):
            raise ValueError(f"{words} does not have the form {form}")
        if (
            not all(0 <= number < math.inf for number in numbers.values())
            or min(numbers["median"], numbers["cap"]) < 1
        ):
            raise ValueError(f"{words}: median and cap must be at least 1, between and within at least 0, all finite")
        if any(numbers.get(name, 0) % 1 for name in ("cap", "prompts")):
            raise ValueError(f"{words}: cap and prompts must be whole numbers")
        return cls(**{**numbers, "cap": int(numbers["cap"]), "prompts": int(numbers.get("prompts", 0))})

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[float]:
        """As those of Trace; a prompt is the logarithm of its median length."""
        normals = generator.standard_normal(count)
        if self.prompts:
            normals = np.random.default_rng(self.prompts).standard_normal(self.prompts)
            normals = normals[generator.integers(self.prompts, size=count)]
        return (math.log(self.median) + self.between * normals).tolist()

    def draw_rollouts(
        self, prompts_B: list[float], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, None]:
        """As those of Trace; nothing is known of correctness."""
        logs = np.array(prompts_B)[:, None] + self.within * generator.standard_normal((len(prompts_B), size))
        return np.clip(np.rint(np.exp(np.minimum(logs, math.log(self.cap)))), 1, self.cap).astype(int), None


def read_trace(path: Path) -> list[tuple[str, int, bool | None]]:
    """Rows of a trace file but the stopped ones: prompt_id, tokens, and correct or None where the trace does not say.

    Raises:
        ValueError: as Trace.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from None
    reader = csv.DictReader(lines)
    try:
        header = [name.strip() for name in reader.fieldnames or []]
    except csv.Error as error:
        raise ValueError(f"{path} line 1: {error}") from None
    reader.fieldnames = header
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        found = ", ".join(header) if header else "nothing"
        raise ValueError(f"{path} line 1: no column {', '.join(missing)}; found {found}")
    if len(set(header)) < len(header):
        raise ValueError(f"{path} line 1: a column has the name of another one: {', '.join(header)}")
    rows, first_lines = [], {}
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"not {len(header)} fields as in line 1")
            row = {name: value.strip() for name, value in row.items()}
            line = first_lines.setdefault((row["prompt_id"], row["sample_id"]), reader.line_num)
            if line != reader.line_num:
                raise ValueError(
                    f"prompt_id {row['prompt_id']}, sample_id {row['sample_id']} are those of line {line}"
                )
            correct, _, stopped = (_flag(name, row.get(name, "")) for name in ("correct", "truncated", "stopped"))
            if stopped:
                continue
            if rows and (correct is None) != (rows[0][2] is None):
                raise ValueError(f"correct is {row['correct'] or 'empty'}: give it in all lines or in none")
            rows.append((row["prompt_id"], _tokens(row["tokens"]), correct))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} line {reader.line_num}: {error}") from None
    if not rows:
        raise ValueError(f"{path} line {reader.line_num + 1}: no rollouts below the header")
    return rows


def _tokens(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise ValueError(f"tokens must be a whole number from 0 to 999999999, got {word or 'nothing'}")
    return int(word)


def _flag(name: str, word: str) -> bool | None:
    if word not in ("", "0", "1"):
        raise ValueError(f"{name} must be 0 or 1, got {word}")
    return None if word == "" else word == "1"

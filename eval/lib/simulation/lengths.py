"""Where simulated rollouts get their lengths from: a trace of real ones, or a distribution."""

import csv
import math
from array import array
from pathlib import Path
from typing import NamedTuple

import numpy as np
from lib.given import check_plain, text_lines
from scipy.special import ndtr

REQUIRED = ("prompt_id", "sample_id", "tokens")
FLAGS = frozenset(["", "0", "1"])


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

    Attributes:
        samples_per_prompt, mean_tokens: [P] of each prompt's rollouts.

    Raises:
        ValueError: the file is no such trace; the message begins with the path and the line's number.
    """

    def __init__(self, path: Path):
        rows = read_trace(path)
        order_N = np.argsort(rows.prompts_N, kind="stable")
        self._tokens = rows.tokens_N[order_N]
        self._correct = None if rows.correct_N is None else rows.correct_N[order_N]
        self.has_correct = self._correct is not None
        self.samples_per_prompt = np.bincount(rows.prompts_N)
        self._starts = np.cumsum(self.samples_per_prompt) - self.samples_per_prompt
        self.mean_tokens = np.add.reduceat(self._tokens, self._starts) / self.samples_per_prompt

    def draw_prompts(self, count: int, generator: np.random.Generator) -> list[int]:
        """`count` prompts, for `draw_rollouts`."""
        return generator.integers(len(self._starts), size=count).tolist()

    def expected_tokens(self, prompts_B: list[int]) -> np.ndarray:
        """Mean response tokens [B] of each prompt."""
        return self.mean_tokens[prompts_B]

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

    def expected_tokens(self, prompts_B: list[float]) -> np.ndarray:
        """As those of Trace, before they are rounded."""
        return capped_mean(np.array(prompts_B), self.within, self.cap)

    def draw_rollouts(
        self, prompts_B: list[float], size: int, generator: np.random.Generator
    ) -> tuple[np.ndarray, None]:
        """As those of Trace; nothing is known of correctness."""
        logs = np.array(prompts_B)[:, None] + self.within * generator.standard_normal((len(prompts_B), size))
        return np.clip(np.rint(np.exp(np.minimum(logs, math.log(self.cap)))), 1, self.cap).astype(int), None


def capped_mean(logs_B: np.ndarray, within: float, cap: int) -> np.ndarray:
    """[B] means of min(exp(N(log, within^2)), cap)."""
    if not within:
        return np.minimum(np.exp(logs_B), cap)
    far_B = (math.log(cap) - logs_B) / within
    return np.exp(logs_B + within**2 / 2) * ndtr(far_B - within) + cap * ndtr(-far_B)


class Rows(NamedTuple):
    """A trace file's rows but the stopped ones: number of the prompt, tokens, and whether it is correct if known."""

    prompts_N: np.ndarray
    tokens_N: np.ndarray
    correct_N: np.ndarray | None


def read_trace(path: Path) -> Rows:
    """The rows of a trace file, read once and in arrays: a run's trace may have a million.

    Raises:
        ValueError: as Trace.
    """
    try:
        check_plain(path)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from None
    try:
        return _read_rows(path, csv.reader(text_lines(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as text: {error}") from None


def _read_rows(path: Path, reader) -> Rows:
    prompts, tokens, correct = array("q"), array("q"), bytearray()
    numbers: dict[str, int] = {}  # of prompts that have rollouts
    first_lines: dict[tuple[str, str], int] = {}
    try:
        columns = _columns(next(reader, []))
        fields, has_correct = len(columns), None
        places = [columns.get(name) for name in (*REQUIRED, "correct", "truncated", "stopped")]
        for row in reader:
            if not row:
                continue
            if len(row) != fields:
                raise ValueError(f"not {fields} fields as in line 1")
            words = ["" if place is None else row[place].strip() for place in places]
            prompt, sample, length, right, truncated, stopped = words
            line = first_lines.setdefault((prompt, sample), reader.line_num)
            if line != reader.line_num:
                raise ValueError(f"prompt_id {prompt}, sample_id {sample} are those of line {line}")
            for name, word in (("correct", right), ("truncated", truncated), ("stopped", stopped)):
                if word not in FLAGS:
                    raise ValueError(f"{name} must be 0 or 1, got {word}")
            if stopped == "1":
                continue
            if has_correct is None:
                has_correct = bool(right)
            if bool(right) != has_correct:
                raise ValueError(f"correct is {right or 'empty'}: give it in all lines or in none")
            tokens.append(_tokens(length))
            prompts.append(numbers.setdefault(prompt, len(numbers)))
            correct.append(right == "1")
    except (ValueError, csv.Error) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise ValueError(f"{path} line {max(reader.line_num, 1)}: {error}") from None
    if not tokens:
        raise ValueError(f"{path} line {reader.line_num + 1}: no rollouts below the header")
    return Rows(np.array(prompts), np.array(tokens), np.frombuffer(correct, bool) if has_correct else None)


def _columns(header: list[str]) -> dict[str, int]:
    """Place of each column."""
    header = [name.strip() for name in header]
    if missing := [name for name in REQUIRED if name not in header]:
        raise ValueError(f"no column {', '.join(missing)}; found {', '.join(header) or 'nothing'}")
    if len(set(header)) < len(header):
        raise ValueError(f"a column has the name of another one: {', '.join(header)}")
    return {name: place for place, name in enumerate(header)}


def _tokens(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise ValueError(f"tokens must be a whole number from 0 to 999999999, got {word or 'nothing'}")
    return int(word)

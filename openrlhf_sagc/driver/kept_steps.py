"""Steps in a folder, each as `step-N.safetensors` and `step-N.json`, which can be trained again without engines.

Nothing is pickled: the files are data that anyone may have written, and what is read of them is checked.
"""

import json
import math
import re
from collections.abc import Iterator
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, NonNegativeInt, PositiveInt, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from openrlhf_sagc.config.refusal import ROLLOUTS_FROM, ROLLOUTS_TO, refusal
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.driver.experience import GroupSample
from openrlhf_sagc.driver.samples import Sample
from openrlhf_sagc.driver.streaming import StepSamples
from openrlhf_sagc.training.training import StepShare


class _Sample(BaseModel, strict=True, extra="forbid"):
    """A `Sample` without its arrays: the I-th of a step has the tensors `tokens.I`, and `log_probs.I` if there are any."""

    ranges: list[tuple[NonNegativeInt, PositiveInt]]
    prompt: Any
    label: Any
    images: None
    mm_train_inputs: None
    reward: FiniteFloat | None
    score: FiniteFloat | None
    truncated: bool
    clipped: bool
    logs: dict[str, float]


class _Group(BaseModel, strict=True, extra="forbid"):
    number: int
    samples: list[_Sample] = Field(min_length=1)


class _Step(BaseModel, strict=True, extra="forbid"):
    format: Literal[1]
    share: StepShare
    metrics: dict[str, float]
    pass_rate: float | None
    groups: list[_Group] = Field(min_length=1)


class KeptRollouts(list[int]):
    """In the place of the samples generator and its prompts: the numbers of a folder's steps that are left to train."""

    def __init__(self, folder: str) -> None:
        super().__init__(kept_steps(folder))
        self._folder = folder

    def state_dict(self) -> dict[str, Any]:
        """Nothing, since no run goes on from it."""
        return {}

    def generate_samples(self, **generate_kwargs) -> tuple[list[GroupSample], float | None, int, bool]:
        """The next step as the generator's; the first episode has all of them, and each counts as one prompt."""
        return (*read_step(self._folder, self.pop(0)), 1, not self) if self else ([], None, 0, True)


def keep_step(folder: str, number: int, step: StepSamples, pass_rate: float | None) -> None:
    """Write the `number`-th step, counted from 1. Its .json comes last: a step that has one is whole.

    Raises:
        OSError: the folder cannot be written to.
    """
    rows = [{name: _plain(getattr(made.sample, name)) for name in _Sample.model_fields} for made in step]
    groups = groupby(range(len(step)), lambda place: step[place].group)
    facts = {"format": 1, "share": vars(step[0].step), "pass_rate": pass_rate}
    facts["metrics"] = {name: float(value) for name, value in step.metrics.items()}
    facts["groups"] = [{"number": group, "samples": [rows[place] for place in places]} for group, places in groups]
    arrays = {f"tokens.{place}": np.asarray(made.sample.tokens_T, np.int32) for place, made in enumerate(step)}
    log_probs = {f"log_probs.{place}": made.sample.log_probs_T for place, made in enumerate(step)}
    arrays |= {name: np.asarray(row_T, np.float32) for name, row_T in log_probs.items() if row_T is not None}
    for kind, content in (("safetensors", save(arrays)), ("json", _text(facts).encode(errors="replace"))):
        fresh = Path(folder, f"step-{number}.{kind}.new")
        fresh.write_bytes(content)
        fresh.replace(fresh.with_suffix(""))


def _plain(value: Any) -> Any:
    """The value, or how Python writes it, where that is no JSON: a run does not end for a label."""
    try:
        _text(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def kept_steps(folder: str) -> list[int]:
    """The numbers of the folder's steps in their order.

    Raises:
        ValueError: there is none, or one between them is missing.
    """
    names = [re.fullmatch(r"step-([1-9][0-9]*)\.json", path.name) for path in Path(folder).glob("step-*")]
    numbers = sorted(int(name[1]) for name in names if name)
    if missing := [a + 1 for a, b in pairwise(numbers) if b != a + 1] or [1] * (not numbers):
        raise ValueError(f"{folder} has no step-{missing[0]}.json")
    return numbers


def check_kept_steps(args: Settings) -> None:
    """End with a line if a step that the run is to train is missing, or is not what a run with its flags has kept."""
    folder, level = args.train.rollouts_from, args.algo.advantage.is_correction_level
    try:
        for number in kept_steps(folder) if folder else ():
            if read_step(folder, number)[0][0].sample.log_probs_T is None and level != "off":
                flag = f"--algo.advantage.is_correction_level {level}"
                raise ValueError(f"{folder}/step-{number}.safetensors: no log_probs for {flag}")
    except ValueError as error:
        raise refusal(f"{ROLLOUTS_FROM} {error}: give a folder that {ROLLOUTS_TO} has written") from None


def read_step(folder: str, number: int) -> tuple[StepSamples, float | None]:
    """A kept step, and the pass rate of its dynamic filter in % or None.

    Raises:
        ValueError: a file cannot be read or has what no step has; the message names the file and the field.
    """
    file = Path(folder, f"step-{number}.json")
    try:
        kept = _Step.model_validate_json(file.read_bytes())
        rows, share = [row for group in kept.groups for row in group.samples], kept.share
        kinds = {(row.reward is None, row.score is None) for row in rows}
        _check(len(kinds) == 1, "groups: not all have a reward, or a score")
        fits = share.num_samples - share.lost == len(rows) and share.lost >= 0 and not share.divisor
        _check(fits, f"share: not of {len(rows)} samples")
        fits = 0 <= share.progress <= 1 and all(0 < value < math.inf for value in share.plain or ())
        _check(fits, "share: progress is not 0 to 1, or plain not above 0")
        file = file.with_suffix(".safetensors")
        made = list(_samples(rows, load_file(file)))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (OSError, ValueError, SafetensorError, TypeError) as error:  # TypeError: of a type that numpy does not have
        raise ValueError(f"{file}: {error}") from None
    groups = [(group.number, len(group.samples)) for group in kept.groups for _ in group.samples]
    stamped = [GroupSample(sample, *group, share) for sample, group in zip(made, groups)]
    return StepSamples(stamped, kept.metrics), kept.pass_rate


def _samples(rows: list[_Sample], arrays: dict[str, np.ndarray]) -> Iterator[Sample]:
    """The samples of a step, whose tensors these are."""
    has_log_probs, none = "log_probs.0" in arrays, np.empty(0)
    for place, row in enumerate(rows):
        tokens_T = arrays.pop(f"tokens.{place}", none)
        log_probs_T = arrays.pop(f"log_probs.{place}", none) if has_log_probs else None
        count = tokens_T.size - 1
        fits = (tokens_T.dtype, tokens_T.ndim) == (np.int32, 1) and count >= 0 and tokens_T.min() >= 0
        _check(fits, f"tokens.{place}: not int32 of 0 or more")
        fits = log_probs_T is None or (log_probs_T.dtype, log_probs_T.shape) == (np.float32, (count,))
        fits = fits and (log_probs_T is None or bool((np.isfinite(log_probs_T) | np.isnan(log_probs_T).all()).all()))
        _check(fits, f"log_probs.{place}: not {count} finite float32")
        edges = [0, *chain.from_iterable(row.ranges), count]  # of parts in their order, none of which is empty
        fits = edges == sorted(edges) and all(start < end for start, end in row.ranges)
        _check(fits, f"tokens.{place}: not those of its ranges")
        yield Sample(tokens_T=tokens_T, log_probs_T=log_probs_T, **dict(row))
    _check(not arrays, f"{min(arrays, default='')}: no tensor of this step")


def _check(fits: bool, problem: str) -> None:
    if not fits:
        raise ValueError(problem)

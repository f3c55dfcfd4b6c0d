"""What a run measured, in the same columns whoever logged it.

`timing/step_total` is another sum with this package, which logs `timing/other` besides. So a step's seconds are the
sum of its four parts, which patched and unpatched OpenRLHF measure alike. The parts of an asynchronous run overlap:
its step is `timing/step_total`, on the clock.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.run_logs.console import PHASES
from lib.run_logs.starts import Run

PARTS = [*PHASES.values()]
TOTAL = "timing/step_total"
OVERLAP = 0.98  # of the sum of the parts: a step that takes less has parts that overlap
FIRST_OF = {  # column -> tags, of which the first that is logged counts
    "samples": ["rollout/num_samples"],
    "reward": ["rollout/reward_mean", "reward"],
    "length": ["rollout/response_length_mean", "response_length"],
    "truncated": ["rollout/truncated_rate", "truncated"],
    "group_size": ["sagc/group_size"],
    "long_round": ["tail_batching/long_round"],
    "idle_tail": ["rollout/idle_tail_seconds"],
    "idle_fraction": ["rollout/idle_fraction"],
    "queue": ["rollout/queue_seconds"],
    "straggler_rate": ["sagc/straggler_rate"],
    "virtual_queue": ["sagc/virtual_queue"],
    "pass_rate": ["dynamic_filtering_pass_rate"],
}
HEALTH = {  # tag -> name
    "kl": "KL to the reference",
    "ppo_kl": "KL to the old policy",
    "vllm_kl": "KL engine against trainer",
    "entropy_loss": "entropy",
    "actor_grad_norm": "gradient norm (last optimizer step)",
    "ppo_clip_ratio": "clip share",
    "policy_loss": "policy loss",
}
WEIGHTS = {  # of the last 100 steps, which this package logs
    f"token_weight/{name}_tenth_{of}": f"{name} tenth of prompts: share of the {what}"
    for name in ("longest", "shortest")
    for of, what in (("tokens", "tokens"), ("update", "update"))
}
OF_A_STEP = "step_seconds/"  # parts of which no second is in two, which this package logs
EVALUATED = re.compile(r"(?:eval_)?(.+)_pass1")


class Measured(NamedTuple):
    """A run.

    Attributes:
        source: what the user gave.
        seed: its number in the arm, or the seed of a comparison.
        steps: a row a step, by its number: PARTS and `seconds` (NaN for the first of a start, which warms up), `spent`
            seconds of training up to its end, from the end of the first step on; `hours` on the clock, without down
            time; the columns of FIRST_OF, HEALTH and WEIGHTS, `made` rollouts, dropped ones included, `tokens` and
            `groups` trained.
        evaluations: step, `spent`, `hours` up to its own end, `reward` (mean over data sources), `samples`; `right` and
            `tokens` where single problems are known; a column for each source.
        asynchronous: whether the parts of a step overlap.
        every: steps between two that are logged.
        notes: sentences.
        kept: command, flags and versions, where they are known.
    """

    source: str
    seed: int
    steps: pd.DataFrame
    evaluations: pd.DataFrame
    asynchronous: bool = False
    every: int = 1
    notes: tuple[str, ...] = ()
    kept: dict = {}

    @property
    def later(self) -> pd.DataFrame:
        """The steps without those that warm up."""
        return self.steps[~self.steps["first"]]


class Arm(NamedTuple):
    """Runs of one name, which are its seeds."""

    name: str
    runs: list[Measured]
    algorithm: str = ""  # of a comparison that has several


def measure(run: Run, seed: int) -> Measured:
    """What the run measured, in columns that every run has; those that are not logged are NaN."""
    logged, notes = run.steps, list(run.notes)
    parts = logged.reindex(columns=[*PHASES]).rename(columns=PHASES)
    total = logged.get(TOTAL, pd.Series(np.nan, logged.index))
    seconds = parts.sum(axis=1, skipna=False)
    asynchronous = bool((total / seconds).median() < OVERLAP)
    if asynchronous:
        notes.append("asynchronous: the parts of a step overlap, and its seconds are timing/step_total, on the clock")
        seconds = total
    elif seconds.isna().all() and total.notna().any():
        notes.append(
            "a step's seconds are timing/step_total, as the parts are not there; with this package that has "
            "timing/other too"
        )
        seconds = total
    elif seconds.isna().all():
        notes.append("the seconds of a step are not logged")
    steps = parts.assign(first=logged["first"], seconds=seconds)
    if steps["seconds"].isna().any() and not steps["seconds"].isna().all():
        notes.append(f"seconds are finite in {steps['seconds'].notna().sum()} of {len(steps)} steps")
    for name, tags in FIRST_OF.items():
        tag = next((tag for tag in tags if tag in logged), None)
        steps[name] = logged[tag] if tag else np.nan
    for tag in [*HEALTH, *WEIGHTS]:
        steps[tag] = logged.get(tag, np.nan)
    steps = steps.assign(**{tag: logged[tag] for tag in logged if tag.startswith(OF_A_STEP)})
    steps = steps.assign(**_derived(steps, logged, run))
    return Measured(run.source, seed, steps, _evaluations(run, steps), asynchronous, run.every, tuple(notes), run.kept)


def _derived(steps: pd.DataFrame, logged: pd.DataFrame, run: Run) -> dict[str, pd.Series]:
    """Columns that follow from others."""
    usual = steps["seconds"].where(~steps["first"])
    usual = (
        usual.fillna(usual.median()).fillna(0) * run.every
    )  # the first step of a start warms up, and counts as another
    wall = logged["wall_time"].diff().where(~steps["first"], usual)
    size = steps["group_size"].fillna(_number(run.kept.get("flags", {}).get("rollout.n_samples_per_prompt")))
    dispatched = logged.get("dynamic_filtering/dispatched", pd.Series(np.nan, steps.index)) * size
    kept = steps["pass_rate"] / 100
    kept = kept / size if (kept > 1).any() else kept  # OpenRLHF as released counts kept samples of prompts (patch 21)
    return {
        "spent": usual.cumsum() - usual.iloc[0],
        "hours": wall.cumsum() / 3600 - wall.iloc[0] / 3600,
        "tokens": steps["samples"] * steps["length"],
        "group_size": size,
        "groups": steps["samples"] / size,
        "made": dispatched.fillna(steps["samples"] / kept).fillna(
            steps["samples"].where(kept.isna() & steps["pass_rate"].isna())
        ),
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int) and abs(value) < 1e9 else np.nan


def _evaluations(run: Run, steps: pd.DataFrame) -> pd.DataFrame:
    """Mean reward of each evaluation, and that of its sources."""
    found = {match[1]: tag for tag in run.evaluations if (match := EVALUATED.fullmatch(tag))}
    at = [step for step in run.evaluations.index if step in steps.index]
    frame = pd.DataFrame({f"of {source}": run.evaluations.loc[at, tag] for source, tag in found.items()}, index=at)
    samples = run.evaluations.get("eval_num_samples", pd.Series(np.nan, run.evaluations.index))
    frame = frame.assign(reward=frame.mean(axis=1), samples=samples.reindex(at), step=at)
    # This package logs a step behind its evaluation, OpenRLHF as released before it.
    logged_at = run.evaluations.get("wall_time", pd.Series(dtype=float)).reindex(at)
    own = (logged_at - run.steps["wall_time"].reindex(at)).clip(lower=0).fillna(0) / 3600
    frame = frame.assign(spent=steps["spent"], hours=steps["hours"] + own)
    return frame.dropna(subset="reward").reset_index(drop=True)

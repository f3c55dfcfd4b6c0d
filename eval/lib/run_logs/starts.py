"""A run from the stretches that its processes logged, each from a start or a resume on.

A resumed run repeats the steps behind its checkpoint. Each step counts once: the latest start that logged it wins, and
what an earlier start logged from that start's first step on is left out.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

TRAIN, EVAL = "train/", "eval/"
LEFT_OUT = "left out: "  # begins a note on what could not be read
COLUMNS = ["step", "tag", "value", "wall_time"]
# Logged by no step before the critic is warmed up.
OF_THE_ACTOR = {
    "policy_loss",
    "actor_lr",
    "actor_grad_norm",
    "kl",
    "ppo_kl",
    "vllm_kl",
    "ppo_clip_ratio",
    "entropy_loss",
}
OF_THE_ACTOR = {TRAIN + name for name in OF_THE_ACTOR}
OTHERS = {
    "verl": ("timing_s/", "actor/", "critic/score", "critic/rewards"),
    "TRL": ("train/completions/", "train/frac_reward_zero_std", "train/step_time"),
    "slime": ("train/pg_loss", "rollout/raw_reward", "perf/rollout_time"),
}


class Start(NamedTuple):
    """What one process logged.

    `table` has COLUMNS: tags begin with train/ or eval/, wall time is in s, NaN where the log does not tell it. `cut`:
    the log ends in the middle of an entry. `folder` tells starts of one folder from those of others. `fault` names the
    file, and what of it could not be read.
    """

    name: str
    table: pd.DataFrame
    cut: bool = False
    folder: str = ""
    fault: str = ""

    @property
    def train(self) -> pd.DataFrame:
        """The rows of training."""
        return self.table[self.table["tag"].str.startswith(TRAIN)]


def numbered(name: str, tables: list[pd.DataFrame], cut: bool = False) -> list[Start]:
    """A start for each table, with its number where there are several; whether the last one is cut."""
    last = len(tables) - 1
    return [
        Start(f"{name} start {at + 1}" if last else name, table[COLUMNS], cut and at == last)
        for at, table in enumerate(tables)
    ]


class Run(NamedTuple):
    """A run of which every step counts once.

    Args:
        source: what the user gave.
        steps: a row a logged step, by its number: metrics without train/, NaN where one is missing or no finite number;
            `wall_time`, NaN where it is not told; `first`, whether a start begins with it.
        evaluations: the same of eval/.
        every: steps between two that are logged.
        notes: sentences about the log.
        kept: `command`, `flags` and `versions` where the run kept them.
        label: of the arm, where the source names it.
    """

    source: str
    steps: pd.DataFrame
    evaluations: pd.DataFrame
    every: int = 1
    notes: tuple[str, ...] = ()
    kept: dict = {}
    label: str = ""


def refuse_others(source: str, tags: set[str]) -> None:
    """The tags are not those of another framework.

    Raises:
        ValueError: they are.
    """
    if any(tag.startswith("train/timing/") for tag in tags):
        return
    for framework, beginnings in OTHERS.items():
        if any(tag.startswith(beginnings) for tag in tags):
            raise ValueError(
                f"{source} is a log of {framework}, whose steps and seconds differ: give a run of OpenRLHF"
            )


def one_run(source: str, starts: list[Start]) -> Run:
    """The run of these starts.

    Raises:
        ValueError: there are no steps, or the starts are of several runs; the message is one line.
    """
    refuse_others(source, {tag for start in starts for tag in start.table["tag"].unique()})
    faults = [start.fault for start in starts if start.fault]
    starts = sorted((start for start in starts if len(start.train)), key=lambda start: start.table["wall_time"].min())
    if not starts:
        raise ValueError(next(iter(faults), f"no training steps in {source}: did the run reach its first step?"))
    notes = [LEFT_OUT + fault for fault in faults]
    for earlier, later in zip(starts, starts[1:]):
        _refuse_another(source, earlier, later)
    steps, evaluations = [], []
    for number, start in enumerate(starts):
        ends = min((_first(later) for later in starts[number + 1 :]), default=np.inf)
        table, said = _whole(start) if number + 1 == len(starts) else (start.table, [])
        wide = {prefix: _wide(table[table["step"] < ends], prefix) for prefix in (TRAIN, EVAL)}
        notes += said + _clock(wide[TRAIN], start.name)
        if ends < np.inf:
            logged = start.train["step"]
            notes.append(
                f"{start.name} ends at step {logged.max()}, a later start begins at {ends}: "
                f"{logged[logged >= ends].nunique()} steps are left out"
            )
        if len(wide[TRAIN]):
            steps.append(wide[TRAIN].assign(first=lambda frame: np.arange(len(frame)) == 0))
        evaluations.append(wide[EVAL])
    joined = pd.concat(steps).sort_index()
    gaps = np.diff(joined.index)
    every = max(int(np.median(gaps)), 1) if len(gaps) else 1
    if every > 1:
        notes.append(
            f"every figure is of one step in {every}, as the log has them (--logger.logging_steps, or a sampled export)"
        )
    elif missing := int((gaps - 1).sum()):
        notes.append(
            f"{missing} steps are missing in the log; an export by an API samples rows: W&B's scan_history has all"
        )
    return Run(source, joined, pd.concat(evaluations).sort_index(), every, tuple(notes))


def _refuse_another(source: str, earlier: Start, later: Start) -> None:
    """Two neighbours are starts of one run.

    Raises:
        ValueError: their clocks overlap, their tags differ, or they may be two runs.
    """
    if later.table["wall_time"].min() <= earlier.table["wall_time"].max():
        raise ValueError(
            f"{source} has two runs that wrote at the same time, {earlier.name} and {later.name}: "
            "give each as its own NAME=FILE"
        )
    ever = {*earlier.train["tag"]}, {*later.train["tag"]}
    differ = sorted(tag.removeprefix(TRAIN) for tag in (_always(earlier) - ever[1]) | (_always(later) - ever[0]))
    if differ:
        shown = ", ".join(differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else "")
        raise ValueError(
            f"{source}: only one of {earlier.name} and {later.name} logs {shown}, so they are two arms: "
            "give each as its own NAME=FILE"
        )
    if earlier.folder != later.folder and _first(later) <= _first(earlier):
        raise ValueError(
            f"{source} has the logs of {earlier.folder} and {later.folder}, which both begin at step {_first(later)}: "
            "give the folder of one run, or each as its own NAME=FOLDER"
        )


def _first(start: Start) -> int:
    return int(start.train["step"].min())


def _in_every_step(train: pd.DataFrame) -> set[str]:
    """Tags that every step of the rows has."""
    counts = train.groupby("tag")["step"].nunique()
    return {*counts[counts == train["step"].nunique()].index}


def _always(start: Start) -> set[str]:
    """Tags of training that every whole step of a start has, without those that begin late."""
    table = _whole(start)[0]
    return _in_every_step(table[table["tag"].str.startswith(TRAIN)]) - OF_THE_ACTOR


def _whole(start: Start) -> tuple[pd.DataFrame, list[str]]:
    """The table without a last step that lacks metrics which all before have; what is to be said of it."""
    last = start.train["step"].max()
    before, at_last = start.train[start.train["step"] < last], start.train[start.train["step"] == last]
    said = [f"{start.name} is still being written, or was cut: it ends in the middle of an entry"] if start.cut else []
    if _in_every_step(before) <= {*at_last["tag"]}:
        return start.table, said
    said = said or [f"{start.name} is still being written"]
    said[0] += f"; step {last} is not whole and is left out"
    return start.table[start.table["step"] < last], said


def _wide(table: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """A row a step, a column a metric without the prefix; of a step that is there twice the last one."""
    mine = table[table["tag"].str.startswith(prefix)]
    mine = mine.assign(tag=mine["tag"].str.removeprefix(prefix)).drop_duplicates(["step", "tag"], keep="last")
    wide = mine.pivot(index="step", columns="tag", values="value").replace([np.inf, -np.inf], np.nan)
    wide.columns.name = None
    return wide.assign(wall_time=mine.groupby("step")["wall_time"].first().astype(float))


def _clock(steps: pd.DataFrame, name: str) -> list[str]:
    """A clock that goes back tells no wall time: it is deleted, with a sentence."""
    back = steps["wall_time"].diff() < 0
    if not back.any():
        return []
    steps["wall_time"] = np.nan
    return [f"the clock of {name} goes back at step {back.idxmax()}: its wall time is left out"]

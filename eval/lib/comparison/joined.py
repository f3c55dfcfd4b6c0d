"""Comparisons whose runs are put together: those with the same settings and other seeds."""

import json
from pathlib import Path

import pandas as pd

FILES = ("settings.json", "steps.csv", "evaluations.csv")
RUN = ["algorithm", "policy", "seed"]


def join(folders: list[Path], policies: list[str] | None, output: Path) -> None:
    """Write the settings, steps and evaluations of several comparisons' runs into `output`.

    Args:
        policies: whose runs are taken, in this order; all if there are none.

    Raises:
        ValueError: settings differ, a policy has no runs in a folder or lacks a seed that another has, a run is in two folders,
            or `output` has other runs.
    """
    settings = json.loads((folders[0] / "settings.json").read_text())
    for folder in folders[1:]:
        check_settings(folder, settings, f"--join {folders[0]} {folder}: their settings differ")
    if (output / "settings.json").exists():
        check_settings(
            output, settings | {"target": None}, f"{output} has other settings, which would be lost; they differ"
        )
    joined = {}
    for name in FILES[1:]:
        parts = [taken_from(folder / name, policies) for folder in folders]
        check_runs(pd.concat([part[RUN].drop_duplicates() for part in parts]))
        joined[name] = pd.concat(parts)
        if policies:
            order = {policy: number for number, policy in enumerate(policies)}
            joined[name] = joined[name].sort_values("policy", key=lambda names: names.map(order), kind="stable")
        if (output / name).exists() and {*runs_of(pd.read_csv(output / name))} - {*runs_of(joined[name])}:
            raise ValueError(f"{output} has other runs, which would be lost: give a new folder")
    output.mkdir(parents=True, exist_ok=True)
    (output / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    for name, frame in joined.items():
        frame.to_csv(output / name, index=False)


def check_runs(runs: pd.DataFrame) -> None:
    """Each run is there once, and each policy of an algorithm has the same seeds, so that arms can be paired.

    Args:
        runs: a row a run of each folder, with the columns RUN.

    Raises:
        ValueError: that is not so.
    """
    if len(twice := runs[runs.duplicated()]):
        run = " ".join(map(str, twice.iloc[0]))
        raise ValueError(f"--join has a run twice, {run}: give comparisons with other seeds")
    seeds = runs.groupby(RUN[:2])["seed"].apply(set)
    for (algorithm, policy), mine in seeds.items():
        if missing := set.union(*seeds[algorithm]) - mine:
            raise ValueError(
                f"--join: {policy} has no seed {min(missing)} in {algorithm}: name with --policies those that have all"
            )


def check_settings(folder: Path, expected: dict, message: str) -> None:
    """The folder's comparison has these settings; a target of None is any. How many runs take turns may differ.

    Raises:
        ValueError: it has others; the message ends with their names.
    """
    own = json.loads((folder / "settings.json").read_text())
    ignored = {"at_once"} | ({"target"} if expected["target"] is None else set())
    if differ := [name for name in own | expected if own.get(name) != expected.get(name) and name not in ignored]:
        raise ValueError(f"{message} in {', '.join(differ)}")


def taken_from(path: Path, policies: list[str] | None) -> pd.DataFrame:
    """The rows of the policies, or all.

    Raises:
        ValueError: it is no file of runs, or a policy has no runs of an algorithm.
    """
    try:
        frame = pd.read_csv(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if missing := [name for name in RUN if name not in frame]:
        raise ValueError(f"{path} has no column {missing[0]}")
    if frame.empty:
        raise ValueError(f"{path} has no runs")
    if not policies:
        return frame
    for algorithm, mine in frame.groupby("algorithm"):
        if missing := [policy for policy in policies if policy not in {*mine["policy"]}]:
            raise ValueError(f"--policies {missing[0]} has no runs of {algorithm} in {path.parent}")
    return frame[frame["policy"].isin(policies)]


def runs_of(frame: pd.DataFrame) -> list[tuple]:
    """(algorithm, policy, seed) of each row."""
    return [*frame[RUN].itertuples(index=False, name=None)]

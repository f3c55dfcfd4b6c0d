"""The arms and traces that a command names: NAME=SOURCE, several of a name for its seeds; FOLDER for a comparison."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lib.given import reading
from lib.run_logs.read import read, read_charts
from lib.run_report.measured import Arm, Measured, measure
from lib.run_report.recorded import is_recorded, read_recorded
from lib.run_report.traces import read_trace

MAY_DIFFER = {"at_once", "target"}  # settings of comparisons whose runs are put together


def arms_of(words: list[str], left_out: list[str] | None = None) -> tuple[list[Arm], dict]:
    """The arms in their order, and the settings of the comparison that they are of, if any.

    Args:
        words: of the command.
        left_out: gets a line for each source that is there and cannot be read, and the arms are of the others.

    Raises:
        ValueError: a word names no run, or two name the same or runs of other settings; the message is one line.
    """
    arms: dict[tuple[str, str], list[Measured]] = {}
    sources: dict[str, list[str]] = {}
    settings: dict = {}
    for word in words:
        name, equals, source = word.partition("=")
        if not equals or Path(word).exists():
            name, source = "", word
        if is_recorded(Path(source)):
            found = None
            with _may_fail(left_out, source), reading(source):
                found = read_recorded(Path(source))
            if found:
                settings = _add_recorded(arms, name, Path(source), settings, *found)
        elif not name:
            raise ValueError(
                f"{word}: give NAME={word}, with a name for the arm, or a folder that eval/compare.py has written"
            )
        else:
            sources.setdefault(name, []).append(source)
            arms.setdefault((name, ""), [])
    for name, given in sources.items():
        if twice := [source for source in given if given.count(source) > 1]:
            raise ValueError(f"{name} has {twice[0]} twice: give each run once")
        runs = arms[name, ""]
        for source in given:
            if not _is_chart(source):
                with _may_fail(left_out, source), reading(source):
                    runs.append(measure(read(source), len(runs)))
        charts = list(filter(_is_chart, given))
        with _may_fail(left_out, *charts), reading(" and ".join(charts)):
            runs += [measure(run, len(runs) + number) for number, run in enumerate(read_charts(charts))]
    return [Arm(name, runs, algorithm) for (name, algorithm), runs in arms.items() if runs], settings


def traces_of(words: list[str], arms: list[Arm], left_out: list[str]) -> dict[str, list[Path]]:
    """The files of --trace by arm; those that cannot be read get a line of `left_out`.

    Raises:
        ValueError: a word has another form, or there is no such arm or file; the message begins with --trace.
    """
    found: dict[str, list[Path]] = {}
    for word in words:
        name, equals, file = word.partition("=")
        if not equals or name not in [arm.name for arm in arms]:
            raise ValueError(f"--trace {word}: give NAME=FILE, with NAME {' or '.join(arm.name for arm in arms)}")
        if not Path(file).exists():
            raise ValueError(f"--trace {word}: there is no {file}")
        try:
            read_trace(Path(file))
        except ValueError as error:
            left_out.append(str(error))
        else:
            found.setdefault(name, []).append(Path(file))
    return found


@contextmanager
def _may_fail(left_out: list[str] | None, *sources: str) -> Iterator[None]:
    """In here these are read; where one is there and cannot be read, its line is put to those of `left_out`, if given."""
    try:
        yield
    except ValueError as error:
        if left_out is None or not all(map(os.path.lexists, [source.partition("#")[0] for source in sources])):
            raise
        left_out.append(str(error))


def _is_chart(source: str) -> bool:
    return Path(source.partition("#")[0]).suffix == ".csv"


def _add_recorded(arms: dict, name: str, folder: Path, settings: dict, found: list[Arm], own: dict) -> dict:
    """Put the runs of a comparison, or of its policy of this name, to those of the same arm; the settings of all."""
    if differ := [
        key for key in {**own, **settings} if settings and own.get(key) != settings.get(key) and key not in MAY_DIFFER
    ]:
        raise ValueError(
            f"{folder} was made with other settings than the comparison before it; they differ in "
            f"{', '.join(sorted(differ))}"
        )
    wanted = [arm for arm in found if name in ("", arm.name)]
    if not wanted:
        raise ValueError(f"{folder} has no policy {name}, but {', '.join(dict.fromkeys(arm.name for arm in found))}")
    for arm in wanted:
        runs = arms.setdefault((arm.name, arm.algorithm), [])
        if twice := {run.seed for run in runs} & {run.seed for run in arm.runs}:
            raise ValueError(
                f"{folder} has a run that is there already, {arm.algorithm} {arm.name} {min(twice)}: give other seeds"
            )
        runs += arm.runs
    return settings or own

"""Whatever a user has of a run: what it is, and the runs in it."""

from pathlib import Path

import pandas as pd
from lib.given import reading
from lib.run_logs.console import read_console
from lib.run_logs.event_files import event_files, read_event_file
from lib.run_logs.exports import HISTORY, read_csv, read_json
from lib.run_logs.kept import kept_of
from lib.run_logs.starts import COLUMNS, Run, Start, one_run

from openrlhf_sagc.run.kept import LOG

READERS = {".json": read_json, ".jsonl": read_json, ".csv": read_csv}
OF_WANDB = f"is W&B's own file: bring it to a server by wandb sync, and export {HISTORY}"
OTHER_FILES = {  # by their endings
    **dict.fromkeys((".gz", ".xz", ".zst", ".zip", ".tgz", ".bz2"), "is packed: unpack it first"),
    **dict.fromkeys((".pkl", ".pickle"), f"may run a program when it is read: export {HISTORY}"),
    ".parquet": "is Parquet: write it as CSV, by pandas.read_parquet(FILE).to_csv(OTHER)",
    ".xlsx": "is a workbook: save its sheet as CSV",
    ".wandb": OF_WANDB,
}
LONGEST_NAME = 80  # of a run, in a message
RUN_MARK = "#"  # FILE#RUN names a run of a file that has several


def read_run(path: Path | str) -> pd.DataFrame:
    """The steps of the one run at `path`, as `Run` has them."""
    return read(str(path)).steps


def read(source: str) -> Run:
    """The run of a folder or file; FILE#RUN where a file has several.

    Raises:
        ValueError: there is none, or there are several; the message is one line and says what would do.
    """
    with reading(source):
        runs = read_all(source)
        if len(runs) > 1:
            raise ValueError(_which(source, runs))
        (starts,) = runs.values()
        run, path = one_run(source, starts), Path(source)
        return run._replace(kept=kept_of(path if path.is_dir() else path.parent))


def read_charts(sources: list[str]) -> list[Run]:
    """The runs of CSV files: charts of the same run are put together, as each has one metric."""
    runs: dict[str, list[tuple[str, list[Start]]]] = {}
    for source in sources:
        with reading(source):
            found = read_all(source)
        if len(found) > 1:
            raise ValueError(_which(source, found))
        ((label, starts),) = found.items()
        runs.setdefault(label or source, []).append((source, starts))
    joined = []
    for parts in runs.values():
        sources_of, starts = " and ".join(source for source, _ in parts), parts[0][1]
        if len(parts) > 1:
            starts = [starts[0]._replace(table=pd.concat([start.table for _, own in parts for start in own]))]
        with reading(sources_of):
            joined.append(one_run(sources_of, starts))
    return joined


def _which(source: str, runs: dict) -> str:
    names = ", ".join(" ".join(name.split())[:LONGEST_NAME] for name in sorted(runs))
    return f"{source} has the runs {names}: give one as FILE{RUN_MARK}RUN"


def read_all(source: str) -> dict[str, list[Start]]:
    """The starts of each run of a source, by the run's name where the source has names."""
    path, _, wanted = (source, "", "") if Path(source).exists() else source.partition(RUN_MARK)
    path = Path(path)
    if not path.exists():
        raise ValueError(f"there is no {path}")
    if path.is_dir():
        return {"": _folder(path)}
    return _file(path, wanted)


def _folder(folder: Path) -> list[Start]:
    files = event_files(folder)
    starts = list(map(_event_file, files))
    if any(len(start.table) or start.fault for start in starts):
        return starts
    log = folder / LOG
    if log.is_file():
        return read_console(log)
    if files:
        raise ValueError(f"no training steps in {folder}: its {len(files)} event file(s) have no scalars")
    if kept := next(iter(sorted(folder.rglob("*.wandb"))), None):
        printed = next(iter(sorted(kept.parent.rglob("output.log"))), None)
        raise ValueError(f"{kept} {OF_WANDB}" + (f", or give what it printed, {printed}" if printed else ""))
    exports = [file.name for file in sorted(folder.iterdir()) if file.suffix in (".csv", ".json", ".jsonl", ".log")]
    advice = (
        f"give one of its files, such as {exports[0]}" if exports else "give a folder with TensorBoard's event files"
    )
    raise ValueError(f"no event files in {folder}, nor below it: {advice}")


def _event_file(file: Path) -> Start:
    """The start of one file of several, which says what is wrong with it."""
    try:
        return read_event_file(file)
    except (ValueError, OSError) as error:
        return Start(file.name, pd.DataFrame(columns=COLUMNS), folder=str(file.parent), fault=str(error))


def _file(path: Path, wanted: str) -> dict[str, list[Start]]:
    if "tfevents" in path.name:
        return {"": [read_event_file(path)]}
    if path.suffix in OTHER_FILES:
        raise ValueError(f"{path} {OTHER_FILES[path.suffix]}")
    if path.suffix not in READERS:
        return {"": read_console(path)}
    runs = READERS[path.suffix](path)
    if wanted and wanted not in runs:
        raise ValueError(f"{path} has no run {wanted!r}, but {', '.join(map(repr, runs))}")
    return {wanted: runs[wanted]} if wanted else runs

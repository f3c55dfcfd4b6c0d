"""TensorBoard's event files."""

import re
from pathlib import Path

import pandas as pd
from lib.run_logs.starts import COLUMNS, Start
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

EARLIER = re.compile(r"(^|/)earlier-\d+$")  # where a run that begins anew puts the log of the one before
PREFIXES = ("train/", "eval/")
FRAME = 16  # bytes around a record: length, its checksum, and that of the content


def event_files(folder: Path) -> list[Path]:
    """The event files at any depth, without those that a run has put aside."""
    found = sorted(folder.rglob("*tfevents*"))
    return [file for file in found if file.is_file() and not EARLIER.search(str(file.parent.relative_to(folder)))]


def read_event_file(file: Path) -> Start:
    """The scalars of a file; texts and other tensors are left out."""
    rows = []
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name != "scalars":
                continue
            number = float(make_ndarray(value.tensor))
            rows.append((event.step, value.tag, number, event.wall_time))
    return Start(file.name, pd.DataFrame(rows, columns=COLUMNS), _is_cut(file), str(file.parent))


def _is_cut(file: Path) -> bool:
    """Whether the file ends in the middle of a record."""
    with file.open("rb") as stream:
        end = stream.seek(0, 2)
        at = 0
        while at + FRAME <= end:
            stream.seek(at)
            at += FRAME + int.from_bytes(stream.read(8), "little")
    return at != end

"""TensorBoard's event files."""

import math
import re
from itertools import islice
from pathlib import Path

import pandas as pd
from lib.given import check_plain
from lib.run_logs.starts import COLUMNS, Start
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.util.tensor_util import make_ndarray

EARLIER = re.compile(r"(^|/)earlier-\d+$")  # where a run that begins anew puts the log of the one before
PREFIXES = ("train/", "eval/")
FRAME = 16  # bytes around a record: length, its checksum, and that of the content
LONGEST = 1 << 24  # bytes of a record: the reader holds it several times
MOST = 1 << 27  # bytes of a file


def event_files(folder: Path) -> list[Path]:
    """The event files at any depth, without those that a run has put aside."""
    found = sorted(folder.rglob("*tfevents*"))
    return [file for file in found if file.is_file() and not EARLIER.search(str(file.parent.relative_to(folder)))]


def read_event_file(file: Path) -> Start:
    """The scalars of a file; texts and other tensors are left out.

    What is damaged or none of a run's is left out too, and the start says so.

    Raises:
        ValueError: it is no file, or too long.
    """
    check_plain(file, MOST)
    rows, faults, tags = [], [], {}
    count, cut, fault = _records(file)
    at = 0
    for at, record in enumerate(islice(RawEventFileLoader(str(file)).Load(), count), 1):
        try:
            event = Event.FromString(record)
        except Exception:  # DecodeError, of protobuf, which TensorBoard has for its own
            faults.append(f"record {at} is none of TensorBoard's")
            continue
        for value in event.summary.value:
            try:
                number = _scalar(value)
            except (ValueError, TypeError, OverflowError) as error:
                faults.append(f"{value.tag[:80]} in record {at}: {error}")
                continue
            if number is not None:
                rows.append((event.step, tags.setdefault(value.tag, value.tag), number, event.wall_time))
    if at < count:
        fault = f"record {at + 1} is damaged, and with it all behind it"
    faults += [fault] if fault else []
    said = f"{file}: {faults[0]}" + (f", and {len(faults) - 1} more" if len(faults) > 1 else "") if faults else ""
    return Start(file.name, pd.DataFrame(rows, columns=COLUMNS), cut, str(file.parent), said)


def _scalar(value: Summary.Value) -> float | None:
    """The number of a summary; None if it is of another kind.

    Raises:
        ValueError: it has several, whatever the shape says; TypeError: it is no number.
    """
    if value.HasField("simple_value"):
        return value.simple_value
    if value.metadata.plugin_data.plugin_name != "scalars":
        return None
    sizes = [dim.size for dim in value.tensor.tensor_shape.dim]
    if any(size != 1 for size in sizes) or len(sizes) > 8:  # before the reader makes as many numbers
        raise ValueError(f"a scalar has the shape {sizes[:8]}, {math.prod(sizes[:8]):,} numbers")
    return float(make_ndarray(value.tensor).item())


def _records(file: Path) -> tuple[int, bool, str]:
    """How many records can be read; whether the file ends in the middle of one; what is wrong with the next one."""
    with file.open("rb") as stream:
        end, at, count = stream.seek(0, 2), 0, 0
        while at + FRAME <= end:
            stream.seek(at)
            length = int.from_bytes(stream.read(8), "little")
            if at + FRAME + length > end:
                break
            if length > LONGEST:
                return count, False, f"record {count + 1} has {length / 1e6:,.0f} MB, and all behind it is left out"
            at, count = at + FRAME + length, count + 1
    return count, at != end, ""

"""The package's note in a checkpoint: the data and flags of the run that saved it, and its files.

It is a small JSON file, so that a resumed run learns before Ray starts what has changed, without loading a model. It is
read as data that anyone may have written.
"""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

NOTE = "openrlhf_sagc.json"
FORMAT = 1
LONGEST = 1 << 16  # bytes of a note, and of any other small file of a checkpoint


def write_notes(path: str, step: int, described: dict[str, Any]) -> None:
    """Write the note into the checkpoints of this step, which are whole now.

    A note that cannot be written, or a folder that this node does not see, costs an early message alone.

    Args:
        path: --ckpt.path.
        step: counted from 1.
        described: what `describe_data` gives.
    """
    for name in (f"global_step{step}", f"best_global_step{step}"):
        folder = Path(path, "_actor", name)
        with contextlib.suppress(OSError):
            files = sorted(path.name for path in folder.rglob("*.pt"))
            if files:
                fresh = folder / f"{NOTE}.new"
                fresh.write_text(json.dumps({"format": FORMAT, "files": files, **described}))
                fresh.replace(folder / NOTE)


def read_note(checkpoint: Path) -> dict[str, Any]:
    """The note; empty if there is none, or none that this version can read."""
    text = small_text(checkpoint / NOTE)
    try:
        note = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(note, dict) or note.get("format") != FORMAT:
        return {}
    return note


def files_of(checkpoint: Path) -> set[str]:
    """The names of the checkpoint's .pt files by its note; empty if that does not say."""
    files = read_note(checkpoint).get("files")
    return set(files) if isinstance(files, list) and all(isinstance(file, str) for file in files) else set()


def shown(words: str) -> str:
    """As a message may show what anyone may have written: in one line, cut, in characters that can be printed."""
    return words[:80] if words.isprintable() else f"{words[:80]!r}"[:80]


def small_text(path: Path) -> str | None:
    """The text of a small file; None if it is no file, unreadable, longer or not UTF-8."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            content = file.read(LONGEST + 1)
        return content.decode() if len(content) <= LONGEST else None
    except (OSError, ValueError):
        return None

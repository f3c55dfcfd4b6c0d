"""Files that others give: whatever is in one, it costs a line that names it, and little memory."""

import codecs
import json
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

MEMORY = 100 << 20  # bytes that reading a source may add to what the process has
MOST = 32 << 20  # bytes of a file that is read at once
LONGEST = 1 << 22  # characters of a line


def check_plain(path: Path, most: int | None = None) -> None:
    """The path leads to a file, of `most` bytes at most.

    Raises:
        ValueError: it does not; the message is one line.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is a folder, a pipe or a device: give a file")
    if most is not None and found.st_size > most:
        raise ValueError(f"{path} has {found.st_size / 1e6:,.0f} MB, and {most / 1e6:.0f} at most are read")


@contextmanager
def reading(source: object, memory: int = MEMORY) -> Iterator[None]:
    """In here the source is read, and what it holds is made of it: what fails becomes a line that names it.

    Raises:
        ValueError: it cannot be read, or takes more than `memory`; the message is one line.
    """
    usual = resource.getrlimit(resource.RLIMIT_DATA)
    most = psutil.Process().memory_info().data + memory
    if usual[0] in (resource.RLIM_INFINITY, -1) or most < usual[0]:
        resource.setrlimit(resource.RLIMIT_DATA, (most, usual[1]))
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{source} is no text: give a TensorBoard folder, an export of W&B or a log") from None
    except MemoryError:
        raise ValueError(f"{source} takes more than {memory >> 20} MB of memory to read: give less of it") from None
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from None
    except Exception as error:
        line = " ".join(str(error).split())[:400]
        known = isinstance(error, ValueError) and str(source).partition("#")[0] in line
        raise ValueError(line if known else f"{source} cannot be read: {type(error).__name__}: {line}") from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, usual)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def text_of(path: Path) -> str:
    """The text of a file: UTF-8, or what its byte order mark says.

    Raises:
        ValueError: it is no text, or too long.
    """
    check_plain(path, MOST)
    return path.read_text(encoding=_encoding(path))


def text_lines(path: Path, errors: str = "strict", longest: int = LONGEST, skip: bool = False) -> Iterator[str]:
    """The lines of a text file, one at a time, whatever ends them; with `skip` those above `longest` are left out.

    Raises:
        ValueError: it is no text, or a line is longer.
    """
    check_plain(path)
    with path.open(encoding=_encoding(path), errors=errors) as file:
        number = 0
        while line := file.readline(longest):
            number += 1
            if len(line) < longest or line.endswith("\n"):
                yield line
            elif not skip:
                raise ValueError(f"{path} line {number} has more than {longest:,} characters")
            else:
                while (line := file.readline(longest)) and not line.endswith("\n"):
                    pass


def json_of(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        ValueError: it is none; the message is one line and begins with the path.
    """
    try:
        check_plain(path, MOST)
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise ValueError(f"{path} is JSON that is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a JSON file that can be read: {error}") from None

"""The streams that a run prints to: no secret and no control character passes them, and run.log keeps what does."""

import logging
import os
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from openrlhf_sagc.redaction import hide, without_secrets

_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Redacted:
    """A text stream that writes no secrets, and what it writes to a file as well; otherwise the stream it stands for."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.kept: TextIO | None = None

    def write(self, text: str) -> int:
        begin = "\r" * text.startswith("\r")  # of a progress bar
        line = _CODES.sub("", text[len(begin) :]).replace("\r", " ")  # bars and colors in lines that Ray brings
        shown = begin + without_secrets(line)
        self._stream.write(shown)
        if self.kept is not None:
            try:
                self.kept.write(shown)
            except OSError:  # a full disk costs the file, not the run
                self.kept = None
        return len(text)

    def isatty(self) -> bool:
        """False: the codes with which libraries color and move on a terminal are left out."""
        return False

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redact_output() -> None:
    """From here on this process prints no secrets, in errors and tracebacks neither, nor in the lines Ray brings of others.

    Loggers that imports have made before write to the redacted streams too. A closed stream stays as it is.
    """
    hide(sys.argv[1:])
    new: dict[int, Redacted] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Redacted):
            new[id(stream)] = Redacted(stream)
            setattr(sys, name, new[id(stream)])
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):  # a place holder has none
            if isinstance(handler, logging.StreamHandler) and id(handler.stream) in new:
                handler.setStream(new[id(handler.stream)])


def keep_output(path: str | os.PathLike) -> None:
    """Append what this process prints from here on to a file, behind `redact_output`, as it is printed.

    Raises:
        OSError: the file cannot be opened.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, Redacted)]
    if streams:
        file = open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1)  # until the process ends
        for stream in streams:
            stream.kept = file

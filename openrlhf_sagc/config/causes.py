"""Errors and texts of others in one line, with the innermost cause first."""

LONGEST = 300  # characters


def short(text: str, longest: int = LONGEST) -> str:
    """The text in one line that can be printed, cut."""
    line = " ".join(text.split())
    line = line if line.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return line if len(line) <= longest else f"{line[:longest]}…"


def cause(error: BaseException) -> str:
    """The error's innermost cause, which libraries hide behind messages that say nothing."""
    seen = {id(error)}
    while (inner := error.__cause__) is not None and id(inner) not in seen:
        seen.add(id(inner))
        error = inner
    return short(f"{type(error).__name__}: {error}".rstrip(": "))

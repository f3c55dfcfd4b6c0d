"""Files that tests write."""

import json
from pathlib import Path


def write_jsonl(path: Path, rows: list) -> Path:
    """A file with a line of JSON for each row."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

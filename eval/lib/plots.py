"""Matplotlib for files, without a screen."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

plt.rcParams.update({"path.simplify_threshold": 1.0, "agg.path.chunksize": 10_000})  # lines may have 100,000 points

# The parts of a step in the order of its seconds, `step_seconds/*` in the log, each with its colour.
PARTS = {
    "decoding": "C0",
    "idle_tail": "C3",
    "rewards": "C5",
    "experience": "C2",
    "training": "C1",
    "optimizer": "C4",
    "sync": "0.5",
    "other": "0.8",
}


def save(figure: plt.Figure, path: Path, dpi: int = 110) -> None:
    """Write the figure to a PNG file and forget it."""
    figure.savefig(path, dpi=dpi)
    plt.close(figure)

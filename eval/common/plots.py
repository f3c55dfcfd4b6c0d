"""Matplotlib for files, without a screen."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def save(figure: plt.Figure, path: Path, dpi: int = 110) -> None:
    """Write the figure to a PNG file and forget it."""
    figure.savefig(path, dpi=dpi)
    plt.close(figure)

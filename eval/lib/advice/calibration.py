"""How far the simulator's costs of an engine were compared with measured steps."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.given import json_of, reading
from lib.paths import ROOT, STUDIES

COMPARED = STUDIES / "simulate/calibration.csv"  # of the CPU stack


class Calibration(NamedTuple):
    """`error` is the largest measured error of the ratio of two policies' seconds, as a share; `words` say of what."""

    measured: bool
    error: float
    words: str


def calibration_of(engine: Path, hold: str) -> Calibration:
    """Of an engine file that `CostModel.load` has read.

    One that names no measured steps is taken to be as wrong as the CPU stack's at least.

    Raises:
        ValueError: the file that it names is not there.
    """
    named = json_of(engine).get("calibration")
    path = ROOT / str(named) if named else COMPARED
    if not path.is_file():
        raise ValueError(f"--engine {engine} names {named} as its calibration, and that is not there: mend or drop it")
    with reading(path):
        table = pd.read_csv(path, compression=None).query("hold == @hold")
        logs = np.log(table["predicted"] / table["measured"])
        steps, ratio = np.abs(np.expm1(logs)).max(), np.expm1(logs.max() - logs.min())
    sizes = ", ".join(map(str, sorted(table["size"])))
    error = f"seconds a step of group sizes {sizes} within {100 * steps:.0f} %, the ratio of two within {100 * ratio:.0f} %"
    if named:
        return Calibration(True, float(ratio), f"calibrated: it predicted {error} ({named})")
    where = path.relative_to(ROOT)
    return Calibration(
        False,
        float(ratio),
        f"not calibrated: no step was measured; on the CPU stack, where some were, {error} ({where})",
    )

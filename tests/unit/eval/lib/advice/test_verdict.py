"""Which switch is advised, and when none is."""

import numpy as np
import pandas as pd
import pytest
from lib.advice.calibration import Calibration
from lib.advice.verdict import LEAST_GAIN, floor_of, verdict


def rows_of(*gains):
    """The run as it is, then switches a, b, ... of these gains with the lower ends of their intervals."""
    rows = [{"switch": "as it is", "flags": "", "gain": 0.0, "low": 0.0, "high": 0.0, "wasted_share": 0.0}]
    for name, (low, gain) in zip("abc", gains):
        row = {"switch": name, "flags": f"--{name}", "gain": gain, "low": low, "high": 2 * gain - low}
        rows.append(row | {"wasted_share": 0.0})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    "gains, error, switch, said",
    [
        ([(0.2, 0.3), (0.25, 0.28)], 0.1, "b", "+28 % [+25, +31]"),  # the surer one
        ([(0.2, 0.3), (0.2, 0.2)], 0.1, "a", "+30 % [+20, +40]"),  # the simpler one, which comes first
        ([(-0.1, 0.3), (-0.2, -0.1)], 0.1, None, "a, +30 % [-10, +70]"),
        ([(0.08, 0.3)], 0.1, None, "10 %: …a, +30 % [+8, +52]"),  # within the simulator's error
        ([(0.02, 0.03)], 0.0, None, "3 %: …a, +3 % [+2, +4]"),  # not worth a flag
        ([(np.nan, np.nan), (0.2, 0.3)], 0.1, "b", "+30 % [+20, +40]"),
        ([(np.nan, np.nan)], 0.1, None, ""),
    ],
)
def test_the_highest_lower_end_is_advised_if_it_exceeds_the_simulators_error(gains, error, switch, said):
    found = verdict(rows_of(*gains), Calibration(True, error, ""))
    assert found.switch == switch and all(part in found.reason for part in said.split("…"))
    assert found.flags == (f"--{switch}" if switch else "")


@pytest.mark.parametrize("low, switch", [(0.30, "a"), (0.27, "b"), (0.22, "b")])
def test_flags_that_gain_no_more_than_can_be_told_are_spared(low, switch):
    """An error of 10 % does not tell 0.30 from 0.42, but 0.27."""
    rows = rows_of((low, 0.5), (0.42, 0.6))
    rows.loc[2, "flags"] = "--b --c"
    assert verdict(rows, Calibration(True, 0.1, "")).switch == switch
    rows.loc[1, "flags"] = "--a --b --c"
    assert verdict(rows, Calibration(True, 0.1, "")).switch == "b"


@pytest.mark.parametrize("before, wasted, said", [(0.0, 0.3, True), (0.0, 0.01, False), (0.3, 0.31, False)])
def test_tokens_that_are_decoded_in_vain_are_said(before, wasted, said):
    rows = rows_of((0.2, 0.3)).assign(wasted_share=[before, wasted])
    assert ("30% of the tokens are decoded in vain" in verdict(rows, Calibration(True, 0.1, "")).reason) == said


def test_the_least_gain_holds_for_a_perfect_simulator():
    assert floor_of(Calibration(True, 0.0, "")) == LEAST_GAIN and floor_of(Calibration(True, 0.2, "")) == 0.2

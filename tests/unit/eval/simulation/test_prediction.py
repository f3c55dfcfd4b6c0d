"""Measured beside predicted seconds. The commands' tests cover the costs that are scaled and the simulated steps."""

import pandas as pd
import pytest
from simulation.prediction import PARTS, measured_and_predicted, report


def seconds(total, **more):
    return pd.Series({"seconds": total, **{part: total / 4 for part in PARTS}, **more})


def test_an_arm_is_compared_with_the_one_that_the_costs_are_from():
    row = measured_and_predicted(seconds(2.0, rest=0.5), seconds(1.6), seconds(4.0), seconds(4.8))
    assert row["error_percent"] == pytest.approx(-20)
    assert (row["measured_times"], row["predicted_times"]) == pytest.approx((2.0, 3.0))
    assert (row["measured_sync"], row["predicted_sync"]) == (1.0, 0.4)  # the simulator has no rest


def test_the_report_says_where_the_costs_are_from_and_the_largest_error():
    known, other = seconds(4.0, rest=0.0), seconds(2.0, rest=0.0)
    rows = [
        {"kind": "grpo", "size": 8, "arm": "old"} | measured_and_predicted(known, known, known, known),
        {"kind": "grpo", "size": 8, "arm": "new"} | measured_and_predicted(other, seconds(1.6), known, known),
    ]
    text = report(pd.DataFrame(rows), {"kind": "kind", "size": "group size", "arm": "arm"}, "old")
    old, new = text.splitlines()[2:4]
    assert "| costs are from here |" in old and "| -20.0 % |" in new and "| 0.50 → 0.40 |" in new
    assert text.splitlines()[0].startswith("| kind | group size | arm |")
    assert text.splitlines()[1].startswith("| --- | ---: | --- |")
    assert text.endswith("The largest error is 20.0 %.\n")

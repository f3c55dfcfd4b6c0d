"""The benchmark of the scheduler's own time runs whole steps."""

import benchmark_scheduler
import pytest


@pytest.mark.parametrize("predicts", [False, True])
def test_a_step_has_as_many_groups_in_flight_as_were_asked_for(predicts):
    row = benchmark_scheduler.measure(groups=256, engines=4, predicts=predicts, repeats=3)
    assert row["in_flight"] >= 256 and row["dispatched"] >= row["in_flight"]
    assert row["seconds_per_1000"] == pytest.approx(1e3 * row["seconds"] / row["dispatched"], rel=0.5)

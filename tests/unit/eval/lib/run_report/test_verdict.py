"""The verdict in a sentence."""

import re

import numpy as np
import pytest
from lib.run_report.verdict import verdict


def found(value, half, **runs):
    return {"value": value, "low": value / half, "high": value * half, **runs}


@pytest.mark.parametrize(
    "ratio, steps, said",
    [
        (
            found(1.25, 1.1, runs=3),
            50,
            "ours is faster than off: a step is 1.25 [1.14, 1.38] times as fast, and takes 80 % of",
        ),
        (
            found(0.8, 1.1, runs=3),
            50,
            "ours is slower than off: a step is 0.80 [0.73, 0.88] times as fast, and takes 125 % of",
        ),
        (found(1.25, 1.1), 2, "ours against off: cannot tell: 2 steps after the warm-up, 20 or more would do."),
        (
            {"value": np.nan, "low": None, "high": None},
            50,
            "cannot tell, the seconds of a step are not known for both",
        ),
        (found(1.1, 1.2, runs=2), 50, "Three seeds or more of each arm would say how many tell it."),
    ],
)
def test_faster_slower_or_cannot_tell(ratio, steps, said):
    assert said in verdict("ours", "off", ratio, steps)


def test_an_interval_of_steps_is_called_one():
    text = verdict("ours", "off", found(1.25, 1.1), 50)
    assert text.startswith("In these runs ours was faster than off: a step is 1.25") and "is of steps: it does" in text
    assert "is of steps" not in verdict("ours", "off", found(1.25, 1.1, runs=3), 50)


def test_it_says_how_many_more_steps_or_seeds_would_tell():
    text = verdict("ours", "off", found(1.1, 1.2), 50)
    assert "cannot tell which is faster: a step is 1.10 [0.92, 1.32]" in text
    steps = int(re.search(r"About (\d+) steps of each would tell a difference of 10 %", text)[1])
    # Half the interval is 1.91 times the difference; a power of 0.8 asks for (1.96 + 0.84) / 1.96 times that.
    assert steps == pytest.approx(50 * (np.log(1.2) / np.log(1.1) * 2.80 / 1.96) ** 2, rel=0.01)
    more = verdict("ours", "off", found(1.1, 1.3, runs=3), 60)
    assert 3 < int(re.search(r"About (\d+) seeds", more)[1]) < 100
    assert "More than 100 seeds" in verdict("ours", "off", found(1.1, 9.0, runs=3), 60)
    assert "More than 100000 steps" in verdict("ours", "off", found(1.0, 9.0), 60)

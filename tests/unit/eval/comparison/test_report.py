"""What the report says of arms that learn at a given pace."""

import numpy as np
import pytest
from comparison_runs import learning, report_of


def test_the_report_says_who_is_sooner(tmp_path):
    arms = [learning("unpatched:4", 80.0), learning("unpatched:8", 64.0), learning("sagc", 32.0)]
    text, rows = report_of(tmp_path, *arms)
    assert rows["unpatched:8"]["time_to_target"]["value"] == pytest.approx(50.0)
    assert rows["sagc"]["best_fixed"] == "unpatched:8"
    assert (
        rows["sagc"]["speedup"]["value"] == pytest.approx(50 / (20 + 10 / 3), abs=0.01)
        and rows["sagc"]["speedup"]["low"] > 1.5
    )
    assert "sagc reached 0.75 sooner than the best fixed size (unpatched:8)" in text
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("reward.png", "control.png", "seconds.png"))


def test_tail_batching_at_a_fixed_size_is_compared_with_the_fixed_size(tmp_path):
    arms = [learning("unpatched:8", 64.0), learning("fixed:8+tail", 32.0), learning("sagc", 96.0)]
    text, rows = report_of(tmp_path, *arms)
    assert rows["fixed:8+tail"]["best_fixed"] == "unpatched:8" and rows["fixed:8+tail"]["speedup"]["low"] > 1.5
    assert "fixed:8+tail reached 0.75 sooner than the best fixed size (unpatched:8)" in text


def test_the_report_says_what_other_rewards_took_and_what_the_idle_tail_could_give(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    times = rows["sagc"]["times"]
    assert list(times) == ["0.65", "0.7", "0.75", "0.8", "0.85"] and times["0.75"] == pytest.approx(
        rows["sagc"]["time_to_target"]["value"]
    )
    row = rows["sagc"]
    assert 1 < row["bound"] == pytest.approx(row["step_seconds"] / (row["step_seconds"] - row["idle_tail"]))
    assert "| policy | 0.65 | 0.7 | 0.75 | 0.8 | 0.85 |" in text


def test_the_report_has_each_run(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    lines = [line for line in text.partition("### Each run")[2].splitlines() if line.startswith("| grpo")]
    assert len(lines) == sum(row["runs"] for row in rows.values())
    times = [float(line.split("|")[4]) for line in lines if "sagc" in line]
    assert np.mean(times) == pytest.approx(rows["sagc"]["time_to_target"]["value"], abs=0.5)
    assert all(line.endswith(" | 8.50 | 3.00 |") for line in lines)


def test_the_report_says_where_a_fixed_size_wins(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 32.0), learning("sagc", 64.0))
    assert "sagc reached 0.75 later than the best fixed size (unpatched:8): the fixed size wins" in text
    assert rows["sagc"]["speedup"]["high"] < 1


def test_the_report_says_what_was_not_reached(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 400.0))
    assert rows["sagc"]["time_to_target"]["value"] is None and rows["sagc"]["reached"] == 0
    assert "sagc did not reach 0.75 in every run" in text and "| – [–, –] |" in text


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_few_runs_give_no_verdict(tmp_path, seeds):
    text, _ = report_of(tmp_path, learning("unpatched:8", 64.0, seeds), learning("sagc", 32.0, seeds))
    assert f"- sagc has too few runs for a verdict ({len(seeds)} of 3)" in text and "sooner" not in text


def test_a_target_that_none_reached_compares_nothing(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 400.0), learning("sagc", 300.0))
    assert rows["sagc"]["speedup"] == {"value": None, "low": None, "high": None} and "[1.00" not in text


def test_the_report_says_that_no_fixed_size_reached_it(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 400.0), learning("sagc", 64.0))
    assert rows["sagc"]["speedup"]["value"] is None and "e+" not in text
    assert "sagc reached 0.75 in every run, which no fixed size did" in text

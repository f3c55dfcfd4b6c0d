"""What the report says of arms that learn at a given pace."""

import numpy as np
import pandas as pd
import pytest
from comparison_runs import SETTINGS, learning, report_of
from lib.run_report.statistics import with_ends


def test_the_report_says_who_is_sooner(tmp_path):
    arms = [learning("unpatched:4", 80.0), learning("unpatched:8", 64.0), learning("sagc", 32.0)]
    text, rows = report_of(tmp_path, *arms)
    assert rows["unpatched:8"]["time_to_target"]["value"] == pytest.approx(50.0)
    assert rows["sagc"]["best_fixed"] == "unpatched:8"
    assert (
        rows["sagc"]["speedup"]["value"] == pytest.approx(50 / (20 + 10 / 3), abs=0.01)
        and rows["sagc"]["speedup"]["low"] > 1.5
    )
    assert rows["sagc"]["sooner"]["0.75"]["low"] > 1.5 and rows["sagc"]["told_apart"].keys() == {"3", "5", "10"}
    assert "sagc reached the rewards up to 0.75 sooner than the best fixed size (unpatched:8)" in text


def test_tail_batching_at_a_fixed_size_is_compared_with_the_fixed_size(tmp_path):
    arms = [learning("unpatched:8", 64.0), learning("fixed:8+tail", 32.0), learning("sagc", 96.0)]
    text, rows = report_of(tmp_path, *arms)
    assert rows["fixed:8+tail"]["best_fixed"] == "unpatched:8" and rows["fixed:8+tail"]["speedup"]["low"] > 1.5
    assert "fixed:8+tail reached the rewards up to 0.75 sooner than the best fixed size (unpatched:8)" in text


def test_this_projects_fixed_sizes_are_compared_with_unpatched_ones(tmp_path):
    text, rows = report_of(tmp_path, *[learning(*arm) for arm in (("unpatched:8", 64.0), ("fixed:8", 32.0))])
    assert rows["fixed:8"]["best_fixed"] == "unpatched:8" and rows["fixed:8"]["speedup"]["value"] > 1.5
    assert "fixed:8 reached the rewards up to 0.75 sooner than the best fixed size (unpatched:8)" in text
    assert "**unpatched:8" not in text
    text, rows = report_of(tmp_path, learning("fixed:4", 64.0), learning("fixed:8", 32.0))
    assert rows["fixed:4"]["best_fixed"] == "fixed:8" and "**fixed" not in text


def test_the_report_says_how_much_faster_a_step_is(tmp_path):
    slow, fast = learning("unpatched:8", 64.0), learning("fixed:8", 64.0)
    fast[0][["generation", "training"]] = [[1.0, 1.0]] * len(fast[0])  # 3.5 s a step instead of 8.5
    fast[0].loc[fast[0]["step"] == 1, "generation"] = 90.0  # warms vLLM up
    fast[0].loc[fast[0]["seed"] == 2, "training"] = 2.0
    text, rows = report_of(tmp_path, slow, fast)
    found = rows["fixed:8"]["step_speedup"]
    assert found["value"] == pytest.approx(3 * 8.5 / (3.5 + 3.5 + 4.5))
    assert 1 < found["low"] < 8.5 / 4.5 and 8.5 / 3.5 < found["high"]
    assert f" {with_ends(found)} |" in text and rows["unpatched:8"]["step_speedup"] is None


def test_the_report_has_the_reward_by_step(tmp_path):
    text, _ = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    table = text.partition("at the same step")[2]
    line = next(line for line in table.splitlines() if line.startswith("| 4 |"))
    cells = [cell.strip().split(" ")[0] for cell in line.split("|")[2:-1]]
    assert cells == ["0.625", "1.000", "0.375"]  # 5 and 8 right answers of 8


def test_differences_at_a_step_are_of_the_seeds_that_both_have(tmp_path):
    alike = learning("unpatched:8", 64.0), learning("unpatched:8", 8.0, seeds=(3,))
    base = tuple(map(pd.concat, zip(*alike)))
    text, _ = report_of(tmp_path, base, learning("sagc", 32.0))
    line = next(line for line in text.partition("at the same step")[2].splitlines() if line.startswith("| 4 |"))
    cells = [cell.strip().split(" ")[0] for cell in line.split("|")[2:-1]]
    assert cells == ["0.719", "1.000", "0.375"]  # the fourth seed of unpatched:8 has all right


def test_the_report_has_the_length_of_heldout_responses(tmp_path):
    steps, evaluations = learning("unpatched:8", 64.0)
    evaluations["tokens"] = 50.0 + evaluations["step"]
    text, rows = report_of(tmp_path, (steps, evaluations))
    assert rows["unpatched:8"]["heldout_before"] == 50 and rows["unpatched:8"]["heldout_after"] == 60
    assert " | 50 → 60 |" in text and rows["unpatched:8"]["passed"]["value"] == 1
    assert " | – → – |" in report_of(tmp_path, learning("unpatched:8", 64.0))[0]


def test_the_report_says_who_is_sooner_at_other_targets_and_what_the_idle_tail_could_give(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    row = rows["sagc"]
    assert (
        list(row["sooner"]) == ["0.65", "0.7", "0.75", "0.8", "0.85"] and rows["unpatched:8"]["sooner"]["0.7"] is None
    )
    assert all(found["value"] == pytest.approx(2, rel=0.1) for found in row["sooner"].values())
    assert 1 < row["bound"] == pytest.approx(row["step_seconds"] / (row["step_seconds"] - row["idle_tail"]))
    assert "| policy | 0.65 | 0.7 | 0.75 | 0.8 | 0.85 |" in text


def test_the_best_fixed_size_has_the_least_mean_time(tmp_path):
    """It is the one that verdicts compare with, so that none is called sooner than a size that was sooner still."""
    early, late = learning("unpatched:8", 64.0), learning("unpatched:16", 80.0)
    runs = early[1]
    # It crosses the target once, early, and falls back until the end.
    zero = " ".join("0" * 32)
    runs.loc[(runs["step"] > 6) & (runs["step"] < 10) | (runs["step"] < 5), "right"] = zero
    text, rows = report_of(tmp_path, early, late, learning("sagc", 70.0))
    assert rows["unpatched:8"]["time_to_target"]["value"] < rows["unpatched:16"]["time_to_target"]["value"]
    assert rows["sagc"]["best_fixed"] == "unpatched:16" and rows["sagc"]["sooner"]["0.75"]["value"] < 1.3
    against = rows["sagc"]["against"]
    assert against["unpatched:16"]["sooner"] == rows["sagc"]["sooner"]["0.75"] and against.keys() == {
        "unpatched:8",
        "unpatched:16",
    }
    assert against["unpatched:8"]["sooner"]["value"] > against["unpatched:16"]["sooner"]["value"]
    assert text.count("\n| sagc | unpatched:") == 2 and "\n| unpatched:8 | unpatched:" not in text


def test_the_best_fixed_size_is_taken_where_all_sizes_were_run(tmp_path):
    """The size that ran with more seeds than the others was faster there than anyone in theirs."""
    steps, evaluations = learning("unpatched:32", 60.0)
    more = learning("unpatched:32", 16.0, seeds=(3, 4, 5))
    lucky = pd.concat([steps, more[0]]), pd.concat([evaluations, more[1]])
    arms = [learning("unpatched:8", 48.0), lucky, learning("sagc", 24.0, seeds=range(6))]
    _, rows = report_of(tmp_path, *arms)
    assert rows["unpatched:32"]["mean_time"]["value"] < rows["unpatched:8"]["mean_time"]["value"]
    assert rows["sagc"]["best_fixed"] == "unpatched:8" and rows["sagc"]["sooner"]["0.75"]["runs"] == 3
    arms[0] = learning("unpatched:8", 90.0)
    _, rows = report_of(tmp_path, *arms)
    assert rows["sagc"]["best_fixed"] == "unpatched:32" and rows["sagc"]["sooner"]["0.75"]["runs"] == 3


def test_arms_of_this_project_are_compared_with_those_named_after_them(tmp_path):
    arms = [learning("fixed:8+tail", 32.0), learning("unpatched:8", 96.0), learning("fixed:8", 64.0)]
    text, rows = report_of(tmp_path, *arms)
    ratio = rows["fixed:8+tail"]["against"]["fixed:8"]["sooner"]
    assert ratio["value"] == pytest.approx(2, rel=0.1)
    assert f"\n| fixed:8+tail | fixed:8 | {with_ends(ratio)} |" in text
    assert "\n| fixed:8 | unpatched:8 |" in text and "\n| fixed:8 | fixed:8+tail |" not in text


def test_the_report_has_each_run(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    lines = [line for line in text.partition("Each run:")[2].splitlines() if line.startswith("| ")][2:]
    assert len(lines) == sum(row["runs"] for row in rows.values())
    times = [float(line.split("|")[3]) for line in lines if "sagc" in line]
    assert np.mean(times) == pytest.approx(rows["sagc"]["time_to_target"]["value"], abs=0.5)
    assert all(line.endswith(" | 8.50 | 3.00 | – |") for line in lines)
    in_turns = [(steps.assign(turns="unpatched:8 sagc"), runs) for steps, runs in (learning("unpatched:8", 64.0),)]
    text, _ = report_of(tmp_path, *in_turns)
    assert " | took turns with |\n" in text and " | 3.00 | unpatched:8 sagc |\n" in text


def test_the_report_says_where_a_fixed_size_wins(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 32.0), learning("sagc", 64.0))
    assert (
        "sagc reached the rewards up to 0.75 later than the best fixed size (unpatched:8): the fixed size wins" in text
    )
    assert rows["sagc"]["speedup"]["high"] < 1


def test_the_report_says_what_was_not_reached(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 400.0))
    assert rows["sagc"]["time_to_target"]["value"] is None and rows["sagc"]["reached"] == 0
    assert "sagc did not reach 0.75 on average." in text and "| – [–, –] |" in text
    assert rows["sagc"]["speedup"] == {"value": None, "low": None, "high": None}


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_few_runs_give_no_verdict(tmp_path, seeds):
    text, _ = report_of(tmp_path, learning("unpatched:8", 64.0, seeds), learning("sagc", 32.0, seeds))
    assert (
        f"sagc has too few runs for a verdict ({len(seeds)} of 3)" in text
        and "sooner than the best fixed size" not in text
    )


def test_a_verdict_needs_three_seeds_that_both_policies_have(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 64.0, (0, 1)), learning("sagc", 32.0))
    assert "sagc has too few runs for a verdict (2 of 3)" in text and rows["sagc"]["told_apart"]["3"] is None


def test_a_target_that_none_reached_compares_nothing(tmp_path):
    _, rows = report_of(tmp_path, learning("unpatched:8", 400.0), learning("sagc", 300.0))
    assert all(row["speedup"] == {"value": None, "low": None, "high": None} for row in rows.values())


def test_the_report_says_that_no_fixed_size_reached_it(tmp_path):
    text, rows = report_of(tmp_path, learning("unpatched:8", 400.0), learning("sagc", 64.0))
    assert rows["sagc"]["speedup"]["value"] is None and "e+" not in text
    assert "sagc reached 0.75 on average, which no fixed size did" in text


def test_runs_that_begin_above_the_target_are_not_told_apart(tmp_path, monkeypatch):
    monkeypatch.setitem(SETTINGS, "target", 0.2)
    arms = [learning("unpatched:8", 64.0), learning("sagc", 32.0)]
    for _, evaluations in arms:
        evaluations.loc[evaluations["step"] == 0, "right"] = evaluations["right"].iloc[-1]
    text, rows = report_of(tmp_path, *arms)
    assert (
        rows["sagc"]["mean_time"]["value"] == 0
        and "no significant difference" in text
        and "no fixed size did" not in text
    )

"""The recorded comparisons give the figures that stand in RESULTS.md."""

import pandas as pd
import pytest
from lib.paths import STUDIES
from lib.run_report.heldout import summaries
from lib.run_report.recorded import FILES, is_recorded, read_recorded
from lib.run_report.seconds import times_faster
from lib.run_report.statistics import with_ends


def test_the_recorded_long_tail_to_the_digit():
    arms, settings = read_recorded(STUDIES / "compare/long_tail_32")
    rows = {row["policy"]: row for row in summaries(arms, settings)}
    against = rows["fixed:8+tail:1"]["against"]["unpatched:32"]
    assert with_ends(against["sooner"]) == "1.53 [1.10, 2.15]" and with_ends(against["step"]) == "1.54 [1.29, 1.83]"
    assert with_ends(times_faster(arms[0], arms[1])) == "1.54 [1.29, 1.83]"


def test_a_comparison_has_an_arm_a_policy(tmp_path):
    arms, settings = read_recorded(STUDIES / "compare/long_tail")
    assert [arm.name for arm in arms] == ["unpatched:8", "fixed:8+tail:1", "unpatched:16", "unpatched:32"]
    assert [len(arm.runs) for arm in arms] == [5] * 4 and settings["target"] == 0.62
    steps = arms[0].runs[0].steps
    assert steps["first"].sum() == 1 and steps["seconds"][2] == pytest.approx(3.6095, abs=1e-4)
    assert not is_recorded(tmp_path)


def test_rollouts_are_all_that_finished_where_the_file_has_them(tmp_path):
    source = STUDIES / "compare/long_tail"
    older = read_recorded(source)[0][0].runs[0].steps
    assert older["made"].tolist() == (older["groups"] * older["group_size"]).tolist()
    for name in FILES:
        (tmp_path / name).write_bytes((source / name).read_bytes())
    steps = pd.read_csv(tmp_path / "steps.csv")
    steps.assign(rollouts=steps["groups"] * 9).to_csv(tmp_path / "steps.csv", index=False)
    assert read_recorded(tmp_path)[0][0].runs[0].steps["made"].tolist() == (older["groups"] * 9).tolist()

"""The recorded comparisons give the figures that stand in RESULTS.md."""

import pandas as pd
import pytest
from lib.paths import STUDIES
from lib.run_report.content import Table
from lib.run_report.heldout import summaries
from lib.run_report.learning import section
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


@pytest.mark.parametrize("file", sorted(STUDIES.rglob("evaluations.csv")), ids=lambda file: file.parent.name)
def test_evaluations_of_all_arms_stand_at_the_same_steps(file):
    run = [name for name in pd.read_csv(file) if name in ("algorithm", "policy", "shape", "arm", "seed")]
    runs = pd.read_csv(file).groupby(run)["step"]
    assert runs.apply(lambda steps: tuple(steps[:3])).nunique() == 1  # a run is evaluated twice at least
    seconds = pd.read_csv(file.parent / "steps.csv").set_index([*run, "step"])["seconds"]
    evaluations = pd.read_csv(file).query("step > 0").set_index(seconds.index.names)["seconds"]
    assert evaluations.equals(seconds.loc[evaluations.index])


@pytest.mark.parametrize("seconds", [None, 73.0])
def test_what_equal_seconds_say_is_the_reports(seconds):
    arms, _ = read_recorded(STUDIES / "equal_seconds")
    text = (STUDIES / "equal_seconds/README.md").read_text().replace("−", "-").replace("**", "")
    tables = [block for block in section(arms, seconds).blocks if isinstance(block, Table)][:2]
    rewards, differences = tables
    rows = [" | ".join(row[1:]) for row in rewards.rows if seconds is None]
    columns = [[row[2:][column] for row in differences.rows] for column in range(3)]
    rows += [" | ".join((rewards.rows[n][1], *columns[n])) for n in range(3)]
    assert not [row for row in rows if f" | {row} |" not in text]

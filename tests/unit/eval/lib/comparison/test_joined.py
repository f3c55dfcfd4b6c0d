"""The command `compare.py report` on made-up runs."""

import json
import sys

import compare
import pandas as pd
import pytest
from comparison_runs import learning, report_of


@pytest.fixture
def command(monkeypatch, tmp_path):
    def run(*words, folder=tmp_path):
        monkeypatch.setattr(sys, "argv", ["compare.py", "report", str(folder), *words])
        compare.main()

    return run


def test_a_report_is_made_again_for_another_target(command, tmp_path, capsys):
    report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    command("--target", "0.5")
    assert "| s to 0.5 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "settings.json").read_text())["target"] == 0.5


@pytest.mark.parametrize("target", ["70", "0", "1", "nan"])
def test_a_target_that_is_no_mean_reward_changes_nothing(command, tmp_path, target):
    for name in compare.FILES:
        (tmp_path / name).write_text("{}")
    with pytest.raises(SystemExit, match=f"eval/compare.py: --target {float(target)} is a mean reward"):
        command("--target", target)
    assert (tmp_path / "settings.json").read_text() == "{}"


def test_a_folder_without_a_comparison_is_named(command, tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SystemExit, match="there is no .*settings.json: run eval/compare.py first"):
            command(folder=folder)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(SystemExit, match="there is no .*steps.csv: run eval/compare.py first"):
        command("--target", "0.5")
    assert (tmp_path / "settings.json").read_text() == "{}"


def two_comparisons(folder):
    """Folders of two comparisons: of the seeds from 0, and of those from 3."""
    folder.mkdir()
    for name, seeds in (("a", 0), ("b", 3)):
        runs = [learning("unpatched:8", 64.0), learning("sagc", 32.0), learning("fixed:8", 48.0)]
        (folder / name).mkdir()
        report_of(folder / name, *[tuple(frame.assign(seed=frame["seed"] + seeds) for frame in run) for run in runs])
    return folder / "a", folder / "b"


def test_runs_of_two_comparisons_are_put_together(command, tmp_path):
    a, b = two_comparisons(tmp_path / "made")
    command("--join", str(a), str(b), "--policies", "unpatched:8", "sagc", folder=tmp_path / "both")
    rows = json.loads((tmp_path / "both/comparison.json").read_text())["policies"]
    before = json.loads((a / "comparison.json").read_text())["policies"]
    assert [(row["policy"], row["runs"]) for row in rows] == [
        ("unpatched:8", 2 * before[0]["runs"]),
        ("sagc", 2 * before[1]["runs"]),
    ]
    assert rows[1]["sooner"]["0.75"]["runs"] == 2 * before[1]["runs"]
    # It may be made again.
    command("--join", str(a), str(b), "--policies", "sagc", "unpatched:8", folder=tmp_path / "both")
    rows = json.loads((tmp_path / "both/comparison.json").read_text())["policies"]
    assert [row["policy"] for row in rows] == ["sagc", "unpatched:8"]


def test_a_join_loses_no_comparison(command, tmp_path):
    a, b = two_comparisons(tmp_path / "made")
    before = (a / "steps.csv").read_text()
    with pytest.raises(SystemExit, match=".*/a has other runs, which would be lost: give a new folder"):
        command("--join", str(a), str(b), "--policies", "unpatched:8", "sagc", folder=a)
    settings = json.loads((a / "settings.json").read_text())
    (a / "settings.json").write_text(json.dumps(settings | {"task": "other"}))
    with pytest.raises(SystemExit, match=".*/a has other settings, which would be lost; they differ in task"):
        command("--join", str(b), folder=a)
    assert (a / "steps.csv").read_text() == before


def test_arms_of_a_join_have_the_same_seeds(command, tmp_path):
    a, b = two_comparisons(tmp_path / "made")
    for name in ("steps.csv", "evaluations.csv"):
        frame = pd.read_csv(b / name)
        frame[frame["policy"] != "sagc"].to_csv(b / name, index=False)
    with pytest.raises(
        SystemExit, match="--join: sagc has no seed 3 in grpo: name with --policies those that have all"
    ):
        command("--join", str(a), str(b), folder=tmp_path / "both")
    (b / "steps.csv").write_text("")
    with pytest.raises(SystemExit, match=".*/b/steps.csv: No columns to parse from file"):
        command("--join", str(a), str(b), folder=tmp_path / "both")
    with pytest.raises(SystemExit, match="--policies needs --join"):
        command("--policies", "sagc", folder=a)


def test_runs_that_do_not_belong_together_are_named(command, tmp_path):
    a, b = two_comparisons(tmp_path / "made")
    both = tmp_path / "both"
    with pytest.raises(
        SystemExit, match="--join has a run twice, grpo unpatched:8 0: give comparisons with other seeds"
    ):
        command("--join", str(a), str(a), folder=both)
    with pytest.raises(SystemExit, match="--policies fixed:4 has no runs of grpo in .*/a"):
        command("--join", str(a), str(b), "--policies", "sagc", "fixed:4", folder=both)
    command("--target", "0.5", folder=b)
    with pytest.raises(SystemExit, match="--join .*/a .*/b: their settings differ in target"):
        command("--join", str(a), str(b), folder=both)
    with pytest.raises(SystemExit, match="there is no .*none/settings.json: run eval/compare.py first"):
        command("--join", str(a), str(tmp_path / "none"), folder=both)
    assert not both.exists()

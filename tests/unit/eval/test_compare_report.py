"""The command compare_report.py on made-up runs."""

import json
import sys

import compare_report
import pytest
from comparison_runs import learning, report_of


@pytest.fixture
def command(monkeypatch, tmp_path):
    def run(*words, folder=tmp_path):
        monkeypatch.setattr(sys, "argv", ["compare_report.py", str(folder), *words])
        compare_report.main()

    return run


def test_a_report_is_made_again_for_another_target(command, tmp_path, capsys):
    report_of(tmp_path, learning("unpatched:8", 64.0), learning("sagc", 32.0))
    command("--target", "0.5")
    assert "| s to 0.5 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "settings.json").read_text())["target"] == 0.5


@pytest.mark.parametrize("target", ["70", "0", "1", "nan"])
def test_a_target_that_is_no_mean_reward_changes_nothing(command, tmp_path, target):
    for name in compare_report.FILES:
        (tmp_path / name).write_text("{}")
    with pytest.raises(SystemExit, match=f"eval/compare_report.py: --target {float(target)} is a mean reward"):
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


def more_seeds(folder):
    """A comparison of the seeds 3, 4, ...; `learning` has those from 0."""
    folder.mkdir()
    for name, seeds in (("a", 0), ("b", 3)):
        runs = [learning("unpatched:8", 64.0), learning("sagc", 32.0), learning("fixed:8", 48.0)]
        (folder / name).mkdir()
        report_of(folder / name, *[tuple(frame.assign(seed=frame["seed"] + seeds) for frame in run) for run in runs])
    return folder / "a", folder / "b"


def test_runs_of_two_comparisons_are_put_together(command, tmp_path):
    a, b = more_seeds(tmp_path / "made")
    command("--join", str(a), str(b), "--policies", "unpatched:8", "sagc", folder=tmp_path / "both")
    rows = json.loads((tmp_path / "both/comparison.json").read_text())["policies"]
    before = json.loads((a / "comparison.json").read_text())["policies"]
    assert [(row["policy"], row["runs"]) for row in rows] == [
        ("unpatched:8", 2 * before[0]["runs"]),
        ("sagc", 2 * before[1]["runs"]),
    ]
    assert rows[1]["sooner"]["0.75"]["runs"] == 2 * before[1]["runs"]


def test_runs_that_do_not_belong_together_are_named(command, tmp_path):
    a, b = more_seeds(tmp_path / "made")
    both = tmp_path / "both"
    with pytest.raises(
        SystemExit, match="--join has a run twice, grpo unpatched:8 0: give comparisons with other seeds"
    ):
        command("--join", str(a), str(a), folder=both)
    with pytest.raises(SystemExit, match="--policies fixed:4 has no runs in .*/a"):
        command("--join", str(a), str(b), "--policies", "sagc", "fixed:4", folder=both)
    command("--target", "0.5", folder=b)
    with pytest.raises(SystemExit, match="--join .*/a .*/b: their settings differ in target"):
        command("--join", str(a), str(b), folder=both)
    with pytest.raises(SystemExit, match="there is no .*none/settings.json: run eval/compare.py first"):
        command("--join", str(a), str(tmp_path / "none"), folder=both)
    assert not both.exists()

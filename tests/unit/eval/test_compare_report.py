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
    for folder in (tmp_path, tmp_path / "none", __file__):
        with pytest.raises(SystemExit, match="there is no .*settings.json: run eval/compare.py first"):
            command(folder=folder)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(SystemExit, match="there is no .*steps.csv: run eval/compare.py first"):
        command("--target", "0.5")
    assert (tmp_path / "settings.json").read_text() == "{}"

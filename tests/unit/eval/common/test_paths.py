"""Paths that a user gives to an evaluation."""

import argparse
import importlib
import sys

import pytest
from common.paths import output_folder

FOLDERS = [
    ("benchmark_group_advantage", "--results"),
    ("calibrate", "--results"),
    ("calibrate", "--runs"),
    ("check_grader", "--output"),
    ("compare", "--output"),
    ("defaults", "--output"),
    ("dynamic_sampling", "--output"),
    ("faster_step", "--output"),
    ("group_sizes", "--output"),
    ("objectives", "--output"),
    ("prompt_sizes", "--output"),
    ("report", "--output"),
    ("step_time", "--output"),
    ("step_time", "--runs"),
]


@pytest.mark.parametrize("below", ["", "/below"])
@pytest.mark.parametrize("script, flag", FOLDERS)
def test_a_file_in_the_way_of_results_is_named_before_any_work(script, flag, below, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", [f"{script}.py", flag, f"{tmp_path}/file{below}"])
    with pytest.raises(SystemExit):
        importlib.import_module(script).main()
    assert f"argument {flag}: {tmp_path}/file is no folder: give one" in capsys.readouterr().err


def test_a_path_that_the_system_refuses_is_named(tmp_path):
    with pytest.raises(argparse.ArgumentTypeError, match="aaa: File name too long: give a folder"):
        output_folder(f"{tmp_path}/{300 * 'a'}")
    assert output_folder(f"{tmp_path}/new/folder") == tmp_path / "new/folder"

"""Paths that a user gives to an evaluation."""

import argparse
import importlib
import os
import sys
from pathlib import Path

import pytest
from common.paths import output_folder, set_aside, write_whole

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


@pytest.mark.parametrize("kind", ["file", "folder", "symlink", "dangling"])
def test_set_aside_overwrites_nothing(tmp_path, kind):
    path = tmp_path / "run.csv"
    (tmp_path / "run.earlier-1.csv").write_text("the first")
    (tmp_path / "run.csv.earlier-1").mkdir()
    (tmp_path / "precious").write_text("a thesis")
    match kind:
        case "file":
            path.write_text("the second")
        case "folder":
            path.mkdir()
            (path / "inside").write_text("the second")
        case _:
            path.symlink_to("precious" if kind == "symlink" else "nothing")
    aside = set_aside(path)
    assert aside.name == ("run.csv.earlier-2" if kind == "folder" else "run.earlier-2.csv")
    assert not os.path.lexists(path) and aside.is_symlink() == (kind in ("symlink", "dangling"))
    if kind in ("file", "folder"):
        assert (aside / "inside" if kind == "folder" else aside).read_text() == "the second"
    assert (tmp_path / "run.earlier-1.csv").read_text() == "the first"
    assert (tmp_path / "precious").read_text() == "a thesis"


def test_what_is_no_file_stays():
    assert set_aside(Path("/dev/null")) is None and set_aside(Path("/nowhere/run.csv")) is None


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    write_whole(path, "the first")

    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError):
        write_whole(path, "the second")
    assert path.read_text() == "the first" and list(tmp_path.iterdir()) == [path]

"""Paths that a user gives to an evaluation."""

import argparse
import importlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from lib.paths import ROOT, STUDIES, output_folder, set_aside, write_whole

# Those that write into a folder.
COMMANDS = ["compare", "report", *(f"studies.{file.parent.name}.run" for file in sorted(STUDIES.glob("*/run.py")))]


@pytest.mark.parametrize("below", ["", "/below"])
@pytest.mark.parametrize("module", COMMANDS)
def test_a_file_in_the_way_of_results_is_named_before_any_work(module, below, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", [f"{module}.py", "--output", f"{tmp_path}/file{below}"])
    with pytest.raises(SystemExit):
        importlib.import_module(module).main()
    assert f"argument --output: {tmp_path}/file is not a folder: give one" in capsys.readouterr().err


def test_a_path_that_the_system_refuses_is_named(tmp_path):
    with pytest.raises(argparse.ArgumentTypeError, match="aaa: File name too long: give a folder"):
        output_folder(f"{tmp_path}/{300 * 'a'}")
    assert output_folder(f"{tmp_path}/new/folder") == tmp_path / "new/folder"


@pytest.mark.parametrize("kind", ["file", "folder"])
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
    aside = set_aside(path)
    assert aside.name == ("run.csv.earlier-2" if kind == "folder" else "run.earlier-2.csv")
    assert not os.path.lexists(path)
    assert (aside / "inside" if kind == "folder" else aside).read_text() == "the second"
    assert (tmp_path / "run.earlier-1.csv").read_text() == "the first"
    assert (tmp_path / "precious").read_text() == "a thesis"


def test_what_is_no_file_stays():
    assert set_aside(Path("/dev/null")) is None and set_aside(Path("/nowhere/run.csv")) is None


def test_a_link_stays_and_the_file_it_leads_to_is_moved(tmp_path):
    link, dangling, target = (tmp_path / name for name in ("link.csv", "dangling.csv", "target.csv"))
    target.write_text("the first")
    link.symlink_to("target.csv")
    dangling.symlink_to("nothing.csv")
    assert set_aside(link) == tmp_path / "target.earlier-1.csv" and set_aside(dangling) is None
    for path in (link, dangling):
        write_whole(path, "the second")
        assert path.is_symlink() and path.read_text() == "the second"
    assert (tmp_path / "target.earlier-1.csv").read_text() == "the first"
    assert target.read_text() == "the second"


def test_a_commands_own_output_is_written_through(tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to("/dev/stdout")
    code = "import sys; from pathlib import Path; from lib.paths import set_aside, write_whole; print('table');"
    code += "path = Path(sys.argv[1]); assert set_aside(path) is None; write_whole(path, '{}')"
    for place in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", link):
        with (tmp_path / "out.txt").open("w") as out:  # as the shell's `>` does it
            subprocess.run([sys.executable, "-c", code, place], cwd=ROOT / "eval", stdout=out, check=True)
        assert (tmp_path / "out.txt").read_text() == "table\n{}"
        assert {path.name for path in tmp_path.iterdir()} == {"link.json", "out.txt"} and link.is_symlink()


def test_files_have_the_permissions_that_the_umask_leaves(tmp_path):
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "private.json", "{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "private.json").stat().st_mode) == 0o600


def test_no_output_takes_the_place_of_an_input(monkeypatch, tmp_path):
    trace, link = tmp_path / "t.csv", tmp_path / "link.csv"
    trace.write_text("prompt_id,sample_id,tokens\n")
    link.symlink_to(trace)
    for paths in (["--json", str(trace)], ["--json", str(link)]):
        monkeypatch.setattr(sys, "argv", ["simulate.py", "--trace", str(trace), *paths])
        with pytest.raises(SystemExit, match=f"--json {paths[1]}: it is the file of --trace too: give another one"):
            importlib.import_module("simulate").main()
    assert trace.read_text() == "prompt_id,sample_id,tokens\n"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    write_whole(path, "the first")

    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError):
        write_whole(path, "the second")
    assert path.read_text() == "the first" and list(tmp_path.iterdir()) == [path]

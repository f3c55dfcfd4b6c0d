"""The file that `--rollout.trace` names, before Ray starts: its path, its one writer, and what it may hold already."""

import os
from types import SimpleNamespace

import pytest

from openrlhf_sagc.driver.trace import HEADER, held_trace


def arguments(path, load_enable=False):
    return SimpleNamespace(rollout=SimpleNamespace(trace=path), ckpt=SimpleNamespace(load_enable=load_enable))


def check_trace(args):
    with held_trace(args):
        pass


def test_the_file_is_made_and_may_be_of_a_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_trace(arguments("new/run.csv"))
    assert (tmp_path / "new/run.csv").read_bytes() == b""
    (tmp_path / "new/run.csv").write_bytes(HEADER + b"a,0-0,7,1,0,1,4,1,0\n")
    check_trace(arguments("new/run.csv", load_enable=True))
    assert len((tmp_path / "new/run.csv").read_bytes().splitlines()) == 2
    check_trace(arguments(None))


@pytest.mark.parametrize("name", ["run.csv", "new/../run.csv", "symlink.csv", "hard.csv", "folder/run.csv"])
def test_a_trace_has_one_writer_whatever_name_it_is_given_by(tmp_path, name):
    (tmp_path / "run.csv").touch()
    (tmp_path / "new").mkdir()
    (tmp_path / "symlink.csv").symlink_to("run.csv")
    (tmp_path / "hard.csv").hardlink_to(tmp_path / "run.csv")
    (tmp_path / "folder").symlink_to(".")
    with held_trace(arguments(str(tmp_path / "run.csv"))):
        with pytest.raises(SystemExit) as refused:
            check_trace(arguments(f"{tmp_path}/{name}"))
    assert str(refused.value).startswith(
        f"openrlhf_sagc: --rollout.trace {tmp_path}/{name} is written by another run: "
    )
    check_trace(arguments(f"{tmp_path}/{name}"))


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    check_trace(arguments(str(tmp_path / "run.csv")))
    assert "run.csv cannot be locked (Function not implemented): let no second run write it" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_trace_is_a_plain_file(tmp_path, kind):
    path = "/dev/null" if kind == "device" else str(tmp_path / "pipe")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(
        SystemExit,
        match=f"^openrlhf_sagc: --rollout.trace {path} is not a plain file: give one, or drop the flag for no trace$",
    ):
        check_trace(arguments(path))


@pytest.mark.parametrize(
    "name, content, load_enable, line",
    [
        ("", None, False, "{} is a folder: give a file"),
        ("run.csv/x.csv", b"text", False, "{} cannot be written to: "),
        (
            "run.csv",
            HEADER + b"a,0-0,7,1,0,1,4,1,0\n",
            False,
            "{} has the rows of another run: give a separate file, or --ckpt.load_enable",
        ),
        ("run.csv", b"prompt_id,tokens\n", True, "{} is not the trace of a run, its first line is 'prompt_id,tokens'"),
    ],
)
def test_a_bad_path_is_one_line(tmp_path, name, content, load_enable, line):
    if content:
        (tmp_path / name.split("/")[0]).write_bytes(content)
    path = str(tmp_path / name)
    with pytest.raises(SystemExit) as ended:
        check_trace(arguments(path, load_enable))
    assert str(ended.value).startswith(f"openrlhf_sagc: --rollout.trace {line.format(path)}")
    assert len(str(ended.value).splitlines()) == 1


@pytest.mark.parametrize("load_enable", [False, True])
@pytest.mark.parametrize("length", [1, len(HEADER) // 2, len(HEADER)])
def test_a_run_killed_in_its_first_write_has_left_no_rows(tmp_path, length, load_enable):
    path = tmp_path / "run.csv"
    path.write_bytes(HEADER[:length])
    check_trace(arguments(path, load_enable))
    assert path.read_bytes() == b""


def test_a_bad_path_ends_the_run_before_ray_starts(run_trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"--rollout.trace {tmp_path} is a folder: give a file"):
        run_trainer("--rollout.trace", ".")
    with pytest.raises(SystemExit, match="--train.batch_size 63 does not divide"):
        run_trainer("--rollout.trace", "run.csv", "--train.batch_size", "63")
    assert not os.path.exists("run.csv")  # nothing is made for flags that cannot work

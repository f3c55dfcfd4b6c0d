"""Two runs with one output folder, and folders that cannot be held."""

import fcntl
import os
import shutil
import signal
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_files import args_for, as_nobody, reachable

from openrlhf_sagc.run.output_folders import LOCK, held_folders


def run_apart(args, held):
    """A process that holds the run's folders until it is killed; its id."""
    process = os.fork()
    if process == 0:
        try:
            with held_folders(args):
                os.write(held, b"held")
                signal.pause()
        finally:
            os._exit(1)
    return process


def test_a_second_run_is_refused_until_the_first_one_is_dead(tmp_path):
    args = args_for(tmp_path)
    ready, held = os.pipe()
    process = run_apart(args, held)
    assert os.read(ready, 4) == b"held"
    for flag, folder, second in [
        ("--ckpt.output_dir", tmp_path / "trained", args),
        ("--ckpt.path", tmp_path, args_for(tmp_path, output="other")),
        ("--ckpt.path", tmp_path, args_for(tmp_path, output="other", save_steps=-1, load=False, best="")),
    ]:
        with pytest.raises(SystemExit) as refused, held_folders(second):
            pass
        assert str(refused.value) == (
            f"openrlhf_sagc: {flag} {folder} is in use by another run, process {process} on {socket.gethostname()}: wait "
            "for its end, or give this run a separate folder"
        )
    with held_folders(args_for(tmp_path, output="other", save_steps=-1, load=False)):  # no checkpoints to share
        pass
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    for _ in range(2):  # and what a run has held is free when it ends
        with held_folders(args):
            assert (tmp_path / LOCK).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


def test_a_folder_that_cannot_be_written_to_or_locked(tmp_path, monkeypatch, capsys):
    (tmp_path / "trained").write_text("a file")
    with pytest.raises(
        SystemExit, match="^openrlhf_sagc: --ckpt.output_dir .*trained cannot be written to: File exists"
    ):
        with held_folders(args_for(tmp_path)):
            pass

    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with held_folders(args_for(tmp_path, output="other")):
        said = capsys.readouterr().out.splitlines()
    assert [line.split(" cannot be locked (Function not implemented)")[0] for line in said] == [
        f"openrlhf_sagc: {name}"
        for name in [f"--ckpt.output_dir {tmp_path}/other"] * 2 + [f"--ckpt.path {tmp_path}"] * 2
    ]


def test_a_read_only_checkpoint_that_is_only_loaded(tmp_path, monkeypatch):
    (tmp_path / LOCK).mkdir()  # no file can be made there
    loads = {"save_steps": -1, "best": "none"}
    cannot = "--ckpt.path .* cannot be held, since its openrlhf_sagc.lock is not a plain file: delete that"
    with pytest.raises(SystemExit, match=cannot), held_folders(args_for(tmp_path)):
        pass
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    with held_folders(args_for(tmp_path, **loads)) as held:
        assert list(held) == ["--ckpt.output_dir"] and (tmp_path / "trained" / LOCK).exists()
    with pytest.raises(SystemExit, match=cannot), held_folders(args_for(tmp_path)):
        pass


def test_another_users_folder_is_one_line(tmp_path):
    reachable(tmp_path)
    (tmp_path / "trained").mkdir(mode=0o755)

    def hold():
        with held_folders(args_for(tmp_path)):
            pass

    line = f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained cannot be written to: Permission denied"
    assert as_nobody(hold) == line
    (tmp_path / "trained").chmod(0o777)
    with held_folders(args_for(tmp_path, save_steps=-1, load=False)):
        pass  # and leaves a lock that another user may not write to
    assert as_nobody(hold) == (
        f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained cannot be held, since its {LOCK} is of another user's run: "
        "delete that if the run has ended, or give this run a separate folder"
    )
    (tmp_path / "trained" / LOCK).unlink()
    assert as_nobody(hold) != line  # it goes on to the next folder


def test_a_disk_that_is_full_at_the_start_costs_the_name_in_the_lock_alone(tmp_path, monkeypatch):
    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with held_folders(args_for(tmp_path)):
        with pytest.raises(SystemExit, match="is in use by another run, which begins just now"):
            with held_folders(args_for(tmp_path)):
                pass


def empty(folder):
    """Delete all that is in the folder, hidden files too."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("removed", ["the lock", "everything", "everything, and a new lock"])
def test_deleting_what_is_in_a_folder_does_not_free_it(tmp_path, removed):
    with held_folders(args_for(tmp_path)):
        if removed == "the lock":
            (tmp_path / "trained" / LOCK).unlink()
        else:
            empty(tmp_path / "trained")
        if removed.endswith("a new lock"):
            (tmp_path / "trained" / LOCK).write_text("")
        with pytest.raises(SystemExit, match="--ckpt.output_dir .*/trained is in use by another run"):
            with held_folders(args_for(tmp_path, save_steps=-1, load=False)):
                pass


@pytest.mark.parametrize("kind", ["symlink", "dangling", "hard link", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_left_alone(tmp_path, kind):
    lock, precious = tmp_path / "trained" / LOCK, tmp_path / "precious"
    precious.write_text("a thesis")
    lock.parent.mkdir()
    match kind:
        case "symlink":
            lock.symlink_to(precious)
        case "dangling":
            lock.symlink_to(tmp_path / "new")
        case "hard link":
            lock.hardlink_to(precious)
        case "pipe":
            os.mkfifo(lock)
        case "folder":
            lock.mkdir()
    with pytest.raises(SystemExit) as refused, held_folders(args_for(tmp_path)):
        pass
    assert str(refused.value) == (
        f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained cannot be held, since its {LOCK} is not a plain file: delete that"
    )
    assert precious.read_text() == "a thesis" and not (tmp_path / "new").exists()
    lock.rmdir() if kind == "folder" else lock.unlink()  # the line's advice
    with held_folders(args_for(tmp_path)):
        pass


def test_one_folder_under_two_names_is_held_once(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    args = args_for(tmp_path / "link")
    args.ckpt.output_dir = str(tmp_path / "real")
    with held_folders(args):
        with pytest.raises(SystemExit, match="in use by another run"), held_folders(args_for(tmp_path, output="link")):
            pass


def test_the_folder_of_the_log_is_held_too(tmp_path):
    args, other = args_for(tmp_path / "1"), args_for(tmp_path / "2")
    for run in (args, other):
        run.logger.tensorboard_dir, run.logger.wandb.run_name = str(tmp_path / "logs"), "run"
    with held_folders(args) as held:
        assert held["--logger.tensorboard_dir"] == str(tmp_path / "logs/run")
        with pytest.raises(SystemExit, match="--logger.tensorboard_dir .*/logs/run is in use by another run"):
            with held_folders(other):
                pass


@pytest.mark.parametrize("section", ["actor", "ref", "critic", "reward"])
def test_a_trained_model_takes_no_place_of_a_model_that_is_loaded(tmp_path, section):
    (tmp_path / "trained").mkdir()
    (tmp_path / "model").symlink_to("trained")
    args = args_for(tmp_path)
    getattr(args, section).model_name_or_path = str(tmp_path / "model")
    with pytest.raises(SystemExit) as refused, held_folders(args):
        pass
    assert str(refused.value) == (
        f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained is the folder of --{section}.model_name_or_path too, so the "
        "trained model would overwrite it: give another --ckpt.output_dir"
    )
    args.ckpt.output_dir = str(tmp_path / "other")
    with held_folders(args):
        pass


@pytest.mark.parametrize("flag", ["--ckpt.output_dir", "--logger.tensorboard_dir", "--rollout.trace"])
def test_no_output_lies_where_old_checkpoints_are_deleted(tmp_path, flag):
    (tmp_path / "link").symlink_to("checkpoints/_actor")
    args, path = args_for(tmp_path / "checkpoints"), str(tmp_path / "link" / "mine")
    match flag:
        case "--ckpt.output_dir":
            args.ckpt.output_dir = path
        case "--logger.tensorboard_dir":
            args.logger.tensorboard_dir, args.logger.wandb.run_name, path = path, "run", f"{path}/run"
        case "--rollout.trace":
            args.rollout.trace = path
    with pytest.raises(
        SystemExit, match=f"^openrlhf_sagc: {flag} {path} lies in a folder _actor, where OpenRLHF deletes"
    ):
        with held_folders(args):
            pass
    assert not (tmp_path / "checkpoints").exists()


def test_a_folder_may_be_called_actor_elsewhere(tmp_path):
    with held_folders(args_for(tmp_path / "_actor" / "checkpoints")) as held:
        assert len(held) == 2


FOLDERS = ("a", "b", "link to a", "a/inside")


@settings(max_examples=12)
@given(st.lists(st.lists(st.sampled_from(FOLDERS), min_size=1, max_size=2, unique=True), min_size=2, max_size=4))
def test_runs_that_race_never_hold_a_folder_at_once(wanted):
    """Each run is a process; it marks its folders as in use while it holds them, which fails where another one has."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "a/inside").mkdir(parents=True)
        (folder / "b").mkdir()
        (folder / "link to a").symlink_to("a")
        begin, go = os.pipe()
        processes = []
        for names in wanted:
            process = os.fork()
            if process == 0:
                try:
                    os.close(go)
                    os._exit(race(folder, names, begin))
                finally:
                    os._exit(1)  # and not on, as a second pytest
            processes.append(process)
        os.close(begin)
        os.close(go)  # lets all of them begin
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        assert set(codes) <= {HELD, REFUSED}
        if all(len(names) == 1 for names in wanted):
            assert HELD in codes


HELD, REFUSED, TOGETHER = 10, 11, 12


def race(folder, names, begin):
    args = args_for(folder, output=names[0], load=False)
    args.ckpt.save_steps = 1 if len(names) == 2 else -1
    args.ckpt.path = str(folder / names[-1])
    os.read(begin, 1)
    try:
        for _ in range(3):
            with held_folders(args):
                marks = {os.path.realpath(folder / name) + "/in use" for name in names}
                for mark in marks:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
                for mark in marks:
                    os.unlink(mark)
    except FileExistsError:
        return TOGETHER
    except SystemExit:
        return REFUSED
    return HELD

"""Two runs with one output folder; a disk that is full while a checkpoint is saved; one that was cut short.

Checkpoints are saved by PyTorch in the order of OpenRLHF and DeepSpeed: the policy, a file for each rank, `latest`, and
the metric. DRILL_SEED repeats a failure.
"""

import fcntl
import os
import random
import resource
import shutil
import signal
import socket
from types import SimpleNamespace

import pytest
import torch

from openrlhf_sagc.output_folders import LOCK, SAVED, choose_checkpoint, held_folders

MOMENTS = int(os.environ.get("DRILL_MOMENTS", 20))


def args_for(folder, output="trained", save_steps=1, load=True, best="none"):
    return SimpleNamespace(
        ckpt=SimpleNamespace(
            path=str(folder),
            output_dir=str(folder / output),
            save_steps=save_steps,
            load_enable=load,
            best_metric_key=best,
        ),
        eval=SimpleNamespace(dataset="prompts.jsonl", steps=5),
        ds=SimpleNamespace(use_universal_ckpt=False),
    )


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
            "for its end, or give this run a folder of its own"
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
        assert "--ckpt.path" in capsys.readouterr().out.splitlines()[1]


def test_a_read_only_checkpoint_that_is_only_loaded(tmp_path, monkeypatch):
    (tmp_path / LOCK).mkdir()  # no file can be made there
    loads = {"save_steps": -1, "best": "none"}
    with pytest.raises(SystemExit, match="--ckpt.path .* cannot be written to"), held_folders(args_for(tmp_path)):
        pass
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    with held_folders(args_for(tmp_path, **loads)):
        assert (tmp_path / "trained" / LOCK).exists()
    with pytest.raises(SystemExit, match="--ckpt.path .* cannot be written to"), held_folders(args_for(tmp_path)):
        pass


def test_a_disk_that_is_full_at_the_start_costs_the_name_in_the_lock_alone(tmp_path, monkeypatch):
    def write(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with held_folders(args_for(tmp_path)):
        with pytest.raises(SystemExit, match="is in use by another run, which begins just now"):
            with held_folders(args_for(tmp_path)):
                pass


class Checkpoints:
    """Saves checkpoints of two ranks, and reads the one that a run goes on from."""

    def __init__(self, folder):
        self.args, self.folder = args_for(folder), folder / "_actor"

    def save(self, step, write=torch.save):
        checkpoint = self.folder / f"global_step{step}"
        checkpoint.mkdir(parents=True)
        states = {"module": torch.full((500,), step), "samples_generator": {"steps": step}}
        write(states, checkpoint / "mp_rank_00_model_states.pt")
        for rank in range(2):
            write(
                {"optimizer": torch.full((500,), step)}, checkpoint / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            )
        with open(self.folder / "latest", "w") as latest:
            latest.write(checkpoint.name)
        (checkpoint / SAVED).write_text("{}")

    def step_to_go_on_from(self):
        """The step of the checkpoint that DeepSpeed would load, all of whose files are read."""
        choose_checkpoint(self.args)
        checkpoint = self.folder / (self.folder / "latest").read_text()
        tensors = [torch.load(file) for file in sorted(checkpoint.glob("*.pt"))]
        assert len(tensors) == 3 and len({int(t.get("module", t.get("optimizer"))[0]) for t in tensors}) == 1
        return tensors[0]["samples_generator"]["steps"]


@pytest.fixture
def rng():
    seed = int(os.environ.get("DRILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"DRILL_SEED={seed}")
    return random.Random(seed)


def test_the_disk_is_full_while_a_checkpoint_is_saved(tmp_path, rng):
    """The system refuses every byte of one file beyond a random one, in a process that ends there."""
    whole = Checkpoints(tmp_path)
    whole.save(1)
    size = max(file.stat().st_size for file in whole.folder.rglob("*.pt"))
    for moment in range(MOMENTS):
        shutil.rmtree(whole.folder)
        for step in (1, 2):
            whole.save(step)
        room, full_at, written = rng.randrange(size), rng.randrange(3), []

        def write(states, path):
            if len(written) == full_at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            written.append(path)
            torch.save(states, path)

        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
            try:
                whole.save(3, write)
            except Exception:
                os._exit(28)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        assert os.waitstatus_to_exitcode(status) in (0, 28)
        went_on = whole.step_to_go_on_from()
        assert went_on == (2 if os.waitstatus_to_exitcode(status) else 3), (moment, room, full_at)


@pytest.mark.parametrize("newest", ["global_step2", "best_global_step2"])
def test_a_run_goes_on_from_the_newest_whole_checkpoint(tmp_path, capsys, rng, newest):
    """The one that `latest` names has lost the end of a file, a whole file, itself, or its name."""
    checkpoints = Checkpoints(tmp_path)
    for moment in range(MOMENTS):
        shutil.rmtree(checkpoints.folder, ignore_errors=True)
        for step in (1, 2, 10):
            checkpoints.save(step)
        (checkpoints.folder / "global_step2").rename(checkpoints.folder / newest)
        unfinished = shutil.copytree(checkpoints.folder / "global_step10", checkpoints.folder / "global_step9")
        (unfinished / SAVED).unlink()  # it was killed before it was whole
        last = checkpoints.folder / "global_step10"
        match moment % 5:
            case 0:
                file = rng.choice(sorted(last.glob("*.pt")))
                os.truncate(file, rng.randrange(file.stat().st_size))
                problem = f"global_step10/{file.name} was cut short"
            case 1:
                (last / "mp_rank_00_model_states.pt").unlink()
                problem = "global_step10 has no model"
            case 2:
                shutil.rmtree(last)
                problem = "global_step10 is gone"
            case 3:
                (checkpoints.folder / "latest").write_text("")  # the disk was full when it was written
                (last / SAVED).unlink()
                problem = "it names none"
            case 4:
                (last / SAVED).unlink()  # the first rank has saved, and has named it; another one was killed
                problem = "global_step10 was not saved to its end"
        capsys.readouterr()
        assert checkpoints.step_to_go_on_from() == 2
        assert capsys.readouterr().out == (
            f"openrlhf_sagc: {checkpoints.folder}/latest does not lead to a whole checkpoint ({problem}): going on from "
            f"{newest}\n"
        )
        assert checkpoints.step_to_go_on_from() == 2 and not capsys.readouterr().out


def test_no_whole_checkpoint_is_one_line(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    choose_checkpoint(checkpoints.args)  # none at all: the run begins anew
    checkpoints.save(1)
    os.truncate(checkpoints.folder / "global_step1" / "mp_rank_00_model_states.pt", 100)
    with pytest.raises(SystemExit, match="^openrlhf_sagc: --ckpt.load_enable finds no whole checkpoint in .*_actor"):
        choose_checkpoint(checkpoints.args)
    checkpoints.args.ckpt.load_enable = False
    choose_checkpoint(checkpoints.args)


@pytest.mark.parametrize("files", [[], ["global_step1/mp_rank_00_model_states.pt", "latest"]])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path, capsys, files):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.folder.mkdir()
    for name in files:
        (checkpoints.folder / name).parent.mkdir(exist_ok=True)
        (checkpoints.folder / name).write_text("global_step1")
    choose_checkpoint(checkpoints.args)
    assert not checkpoints.args.ckpt.load_enable
    assert capsys.readouterr().out == (
        f"openrlhf_sagc: no checkpoint in {checkpoints.folder} was saved to its end: the run begins anew\n"
    )


def test_latest_that_cannot_be_mended_is_one_line(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step)
    (checkpoints.folder / "global_step2" / SAVED).unlink()
    (checkpoints.folder / "latest.new").mkdir()
    with pytest.raises(
        SystemExit, match="^openrlhf_sagc: .*latest cannot be written to .*: let it hold global_step1$"
    ):
        choose_checkpoint(checkpoints.args)

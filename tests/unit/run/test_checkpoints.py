"""A disk that is full while a checkpoint is saved; one that was cut short, or whose files are odd.

Checkpoints are saved by PyTorch in the order of OpenRLHF and DeepSpeed: the policy, a file for each rank, `latest`, and
the metric. DRILL_SEED repeats a failure.
"""

import os
import random
import resource
import shutil
import signal

import pytest
import torch
from checkpoints import Checkpoints
from run_files import args_for, as_nobody, reachable

from openrlhf_sagc.run.checkpoints import SAVED, choose_checkpoint

MOMENTS = int(os.environ.get("DRILL_MOMENTS", 20))


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
            f"openrlhf_sagc: {checkpoints.folder}/latest does not lead to a complete checkpoint ({problem}): going on from "
            f"{newest}\n"
        )
        assert checkpoints.step_to_go_on_from() == 2 and not capsys.readouterr().out


def test_no_whole_checkpoint_is_one_line(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    os.truncate(checkpoints.folder / "global_step1" / "mp_rank_00_model_states.pt", 100)
    with pytest.raises(
        SystemExit, match="^openrlhf_sagc: --ckpt.load_enable finds no complete checkpoint in .*_actor"
    ):
        choose_checkpoint(checkpoints.args)
    checkpoints.args.ckpt.load_enable = False
    assert choose_checkpoint(checkpoints.args) is None


@pytest.mark.parametrize("files", [[], ["global_step1/mp_rank_00_model_states.pt", "latest"]])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path, capsys, files):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.folder.mkdir()
    for name in files:
        (checkpoints.folder / name).parent.mkdir(exist_ok=True)
        (checkpoints.folder / name).write_text("global_step1")
    assert choose_checkpoint(checkpoints.args) is None
    assert capsys.readouterr().out == (
        f"openrlhf_sagc: no checkpoint in {checkpoints.folder} was saved to its end: the run begins anew\n"
    )


def test_a_path_without_checkpoints_is_said(tmp_path, capsys):
    args = args_for(tmp_path / "mistyped")
    assert choose_checkpoint(args) is None
    assert capsys.readouterr().out == (
        f"openrlhf_sagc: --ckpt.load_enable finds no checkpoint in --ckpt.path {tmp_path}/mistyped: the run begins anew\n"
    )


def test_latest_that_cannot_be_mended_is_one_line(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    latest = checkpoints.folder / "latest"
    latest.unlink()
    latest.mkdir()
    with pytest.raises(
        SystemExit, match="^openrlhf_sagc: .*latest cannot be written to .*: let it be a file that holds global_step1$"
    ):
        choose_checkpoint(checkpoints.args)
    latest.rmdir()  # the line's advice
    latest.write_text("global_step1")
    assert choose_checkpoint(checkpoints.args) == checkpoints.folder / "global_step1"


def test_latest_is_mended_through_no_link(tmp_path):
    """Neither the file that it links to is written, nor one that waits under the name of the new one."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    latest, precious = checkpoints.folder / "latest", tmp_path / "precious"
    precious.write_text("a thesis")
    latest.unlink()
    latest.symlink_to(precious)
    (checkpoints.folder / "latest.new").symlink_to(precious)
    assert checkpoints.step_to_go_on_from() == 1
    assert precious.read_text() == "a thesis" and not latest.is_symlink()


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"global_step1\xff", "it is not a short text"),
        (b"x" * 5000, "it names no folder beside it: '" + "x" * 79),
        (b"x" * 70_000, "it is not a short text"),
        (b"../elsewhere/global_step1", "it names no folder beside it: '../elsewhere/global_step1')"),
        (b"{absolute}", "it names no folder beside it: '{absolute}"),
        (b"..", "it names no folder beside it: '..')"),
        (b"global_step1\0", "it names no folder beside it: 'global_step1\\x00')"),
        (b"global_step1\nglobal_step2", "it names no folder beside it: 'global_step1\\nglobal_step2')"),
        (b"  \n", "it names none"),
        (b"global_step7", "global_step7 is gone"),
        (b"file", "file is gone"),
        (None, "it names none"),
    ],
)
def test_an_odd_latest_leads_to_the_newest_whole_checkpoint(tmp_path, capsys, content, problem):
    checkpoints, elsewhere = Checkpoints(tmp_path / "mine"), Checkpoints(tmp_path / "mine/elsewhere")
    for step in (1, 2):
        checkpoints.save(step)
    elsewhere.save(1)
    (checkpoints.folder / "file").write_text("")
    absolute = str(elsewhere.folder / "global_step1")
    latest = checkpoints.folder / "latest"
    if content is None:
        latest.unlink()
        latest.symlink_to("nothing")
    else:
        latest.write_bytes(content.replace(b"{absolute}", absolute.encode()))
    assert choose_checkpoint(checkpoints.args) == checkpoints.folder / "global_step2"
    said = capsys.readouterr().out
    shown = problem.replace("{absolute}", absolute)[:110]
    assert len(said.splitlines()) == 1 and f"({shown}" in said
    assert latest.read_text() == "global_step2"


def test_a_latest_that_is_a_pipe_waits_for_nobody(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    (checkpoints.folder / "latest").unlink()
    os.mkfifo(checkpoints.folder / "latest")
    assert checkpoints.step_to_go_on_from() == 1


@pytest.mark.parametrize("shard", ["mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"])
@pytest.mark.parametrize(
    "kind, problem",
    [
        ("folder", "is not a file"),
        ("pipe", "is not a file"),
        ("device", "is not a file"),
        ("dangling", "is a link to nothing"),
        ("circle", "is a link to nothing"),
        ("empty", "was cut short"),
        ("a byte", "was cut short"),
        ("zeros", "was cut short"),
        ("text", "was cut short"),
    ],
)
def test_an_odd_file_makes_a_checkpoint_incomplete(tmp_path, capsys, shard, kind, problem):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step)
    file = checkpoints.folder / "global_step2" / shard
    size = file.stat().st_size
    file.unlink()
    match kind:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "dangling":
            file.symlink_to("nothing")
        case "circle":
            file.symlink_to(file.name)
        case "empty":
            file.write_bytes(b"")
        case "a byte":
            file.write_bytes(b"P")
        case "zeros":  # as a file system leaves it after a power failure
            file.write_bytes(bytes(size))
        case "text":
            file.write_text("version https://git-lfs.github.com/spec/v1")
    assert choose_checkpoint(checkpoints.args).name == "global_step1"
    assert f"(global_step2/{shard} {problem})" in capsys.readouterr().out


def test_a_shard_may_be_a_link(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    shard = checkpoints.folder / "global_step1" / "mp_rank_00_model_states.pt"
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    assert checkpoints.step_to_go_on_from() == 1


DEEP = "[" * 60_000


@pytest.mark.parametrize("content", [DEEP, "[" * 200_000, None], ids=["deep", "deep and large", "a folder"])
def test_an_odd_metric_makes_a_checkpoint_incomplete(tmp_path, capsys, content):
    """With a deep one OpenRLHF would end, when it looks for the worst checkpoint."""
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step)
    metric = checkpoints.folder / "global_step2" / SAVED
    metric.unlink()
    if content is None:
        metric.mkdir()
    else:
        metric.write_text(content)
    assert choose_checkpoint(checkpoints.args).name == "global_step1"
    assert "(global_step2" in capsys.readouterr().out


def test_a_checkpoint_that_may_not_be_read_is_incomplete(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step)
    reachable(tmp_path)
    (checkpoints.folder / "latest").chmod(0o666)
    checkpoints.folder.chmod(0o777)
    (checkpoints.folder / "global_step2").chmod(0o700)

    def choose():
        raise SystemExit(choose_checkpoint(checkpoints.args).name)

    assert as_nobody(choose) == "global_step1"
    (checkpoints.folder / "global_step2").chmod(0o755)
    (checkpoints.folder / "global_step2" / "mp_rank_00_model_states.pt").chmod(0o600)
    assert as_nobody(choose) == "global_step1"
    checkpoints.folder.chmod(0o700)
    assert as_nobody(choose).endswith("cannot be read: Permission denied")

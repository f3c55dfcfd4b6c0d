"""A disk that is full while a checkpoint is saved; one that was cut short, or whose files are odd.

Checkpoints are saved by PyTorch in the order of OpenRLHF and DeepSpeed: the policy, a file for each rank, `latest`, and
the metric. DRILL_SEED repeats a failure.
"""

import itertools
import os
import random
import resource
import shutil
import signal
import zipfile

import pytest
import torch
from run_files import args_for, as_nobody, reachable

from openrlhf_sagc.run.checkpoints import SAVED, choose_checkpoint
from openrlhf_sagc.run.notes import write_notes

MOMENTS = int(os.environ.get("DRILL_MOMENTS", 20))


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
    checkpoints.save(1)
    os.truncate(checkpoints.folder / "global_step1" / "mp_rank_00_model_states.pt", 100)
    with pytest.raises(SystemExit, match="^openrlhf_sagc: --ckpt.load_enable finds no whole checkpoint in .*_actor"):
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
    choose_checkpoint(checkpoints.args)
    assert not checkpoints.args.ckpt.load_enable
    assert capsys.readouterr().out == (
        f"openrlhf_sagc: no checkpoint in {checkpoints.folder} was saved to its end: the run begins anew\n"
    )


def test_a_path_without_checkpoints_is_said(tmp_path, capsys):
    args = args_for(tmp_path / "mistyped")
    assert choose_checkpoint(args) is None and not args.ckpt.load_enable
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
        (b"global_step1\xff", "it is no short text"),
        (b"x" * 5000, "it names no folder beside it: '" + "x" * 79),
        (b"x" * 70_000, "it is no short text"),
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
        ("folder", "is no file"),
        ("pipe", "is no file"),
        ("device", "is no file"),
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


def names(*patterns, **ranks):
    """File names for each combination of the ranks."""
    found = []
    for pattern in patterns:
        keys = [key for key in ranks if "{" + key in pattern]
        for values in itertools.product(*(range(ranks[key]) for key in keys)):
            found.append(pattern.format(**dict(zip(keys, values))))
    return found


MODEL_2, MODEL_3 = "mp_rank_{mp:02d}_model_states.pt", "zero_pp_rank_{pp}_mp_rank_{mp:02d}_model_states.pt"
FP16, BF16 = (f"{prefix}zero_pp_rank_{{pp}}_mp_rank_{{mp:02d}}_optim_states.pt" for prefix in ("", "bf16_"))
LAYOUTS = {  # ZeRO stage, tensor parallel size, files of four ranks
    "stage 2, fp16": (2, 1, names(MODEL_2, FP16, mp=1, pp=4)),
    "stage 2, bf16": (2, 1, names(MODEL_2, BF16, mp=1, pp=4)),
    "stage 3, bf16": (3, 1, names(MODEL_3, BF16, mp=1, pp=4)),
    "stage 2, tensor parallel": (2, 2, names(MODEL_2, BF16, mp=2, pp=2)),
    "stage 3, tensor parallel": (3, 2, names(MODEL_3, FP16, mp=2, pp=2)),
    "stage 0": (0, 1, names(MODEL_2, mp=1)),
    "stage 0, bf16": (0, 1, names(MODEL_2, BF16, mp=1, pp=4)),
    "experts": (2, 1, names(MODEL_2, BF16, "expp_rank_{ep}_mp_rank_{mp:02d}_optim_states.pt", mp=1, pp=4, ep=2)),
    "eleven ranks and more": (2, 1, names(MODEL_2, BF16, mp=1, pp=12)),
}


@pytest.mark.parametrize("noted", [False, True], ids=["by names", "by the note"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_missing_shard_is_noticed(tmp_path, capsys, layout, noted):
    """Only where the run's ranks are not known, the last of all shards is noticed by the note alone."""
    stage, tensor_parallel, files = LAYOUTS[layout]
    args = args_for(tmp_path)
    args.ds.zero_stage, args.ds.tensor_parallel_size = stage, tensor_parallel
    args.ds.param_dtype = "bf16" if any(name.startswith("bf16") for name in files) else "fp16"
    args.actor.num_gpus_per_node = 12 if len(files) > 11 else 4
    for step in (1, 2):
        folder = tmp_path / "_actor" / f"global_step{step}"
        folder.mkdir(parents=True)
        for name in files:
            with zipfile.ZipFile(folder / name, "w"):
                pass
        (folder / SAVED).write_text("{}")
        if noted:
            write_notes(str(tmp_path), step, {})
    (tmp_path / "_actor/latest").write_text("global_step2")
    assert choose_checkpoint(args) == folder and not capsys.readouterr().out
    for name in files:
        (folder / name).rename(tmp_path / name)
        unknown = tensor_parallel > 1 and (
            name.startswith("mp_rank_01") or "pp_rank_1" in name or "mp_rank_01" in name
        )
        chosen = choose_checkpoint(args)
        if noted or not (unknown or layout == "experts"):
            assert chosen.name == "global_step1", name
            problem = f"lacks {name}" if name.endswith("optim_states.pt") and "expp" not in name else ""
            assert problem in capsys.readouterr().out
        (tmp_path / name).rename(folder / name)
        (tmp_path / "_actor/latest").write_text("global_step2")


@pytest.mark.parametrize("noted", [True, False])
def test_another_number_of_ranks_is_one_line(tmp_path, noted):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    if noted:
        write_notes(str(tmp_path), 1, {})
    checkpoints.args.actor.num_gpus_per_node = 4
    with pytest.raises(SystemExit) as refused:
        choose_checkpoint(checkpoints.args)
    assert str(refused.value) == (
        f"openrlhf_sagc: --ckpt.path {tmp_path}: global_step1 was saved by 2 ranks, and --actor.num_nodes 1 x "
        "--actor.num_gpus_per_node 4 makes 4: use as many as then, or start from its model"
    )
    checkpoints.args.actor.num_gpus_per_node = 2
    assert checkpoints.step_to_go_on_from() == 1


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"zero_stage": 3}, "was saved without --ds.zero_stage 3, and this run has 3: use the stage of then, or"),
        (
            {"param_dtype": "bf16"},
            "was saved without --ds.param_dtype bf16, and this run has bf16: use the type of then",
        ),
    ],
)
def test_another_stage_or_type_is_one_line(tmp_path, changes, line):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1)
    vars(checkpoints.args.ds).update(changes)
    with pytest.raises(SystemExit, match=f"^openrlhf_sagc: --ckpt.path {tmp_path}: global_step1 {line}"):
        choose_checkpoint(checkpoints.args)


def test_a_universal_checkpoint_is_found_or_missed_in_one_line(tmp_path):
    args = args_for(tmp_path)
    args.ds.use_universal_ckpt = True
    folder = tmp_path / "_actor"
    (folder / "global_step1_universal/zero").mkdir(parents=True)
    line = "--ds.use_universal_ckpt finds no universal checkpoint in .*_actor .`latest_universal`: "
    for name, problem in ((None, "it names none"), ("global_step2_universal", "is gone"), ("../x", "names no folder")):
        if name:
            (folder / "latest_universal").write_text(name)
        with pytest.raises(SystemExit, match=f"{line}.*{problem}.*ds_to_universal.py, or drop the flag$"):
            choose_checkpoint(args)
    (folder / "latest_universal").write_text("global_step1_universal")
    assert choose_checkpoint(args) == folder / "global_step1_universal"

"""A folder with what an earlier run has left is renamed, and nothing else."""

import os
import re
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_files import args_for, as_nobody, reachable

from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
from openrlhf_sagc.run.output_folders import LOCK, MODELS, held_folders

# As transformers 5 and peft save them, for one model in two files and another with adapters.
SAVED = [
    *("config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    *("model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "adapter_model.bin", "adapter_config.json"),
    *("preprocessor_config.json", "pytorch_model.bin"),
]
OTHERS = ["notes.txt", "train.log", "report.json", "rewards.csv"]


def begin(args):
    """The start of a run, as far as its folders go; they are free again at the end."""
    with ExitStack() as stack:
        if set_earlier_outputs_aside(args, stack.enter_context(held_folders(args))):
            stack.close()
            stack.enter_context(held_folders(args))


@pytest.fixture
def args(tmp_path):
    args = args_for(tmp_path / "checkpoints", load=False)
    args.ckpt.output_dir, args.logger.tensorboard_dir = str(tmp_path / "trained"), str(tmp_path / "logs")
    for name in [*SAVED, *OTHERS]:
        write(tmp_path / "trained" / name)
    for name in ("_actor/global_step5/mp_rank_00_model_states.pt", "_critic/latest", "global_step5_hf/config.json"):
        write(tmp_path / "checkpoints" / name)
    write(tmp_path / "checkpoints/mine/config.json")
    write(tmp_path / "logs/run/events.out.tfevents.1")
    write(tmp_path / "logs/other/events.out.tfevents.1")
    return args


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.name)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def test_a_run_that_begins_anew_renames_each_folder_that_has_outputs(tmp_path, args, capsys):
    before = files(tmp_path)
    begin(args)
    names = ("trained", "checkpoints", "logs/run")
    assert files(tmp_path) == {
        re.sub(f"^({'|'.join(names)})/", r"\1.earlier-1/", name) for name in before  # a user's own files, too
    }
    assert all((tmp_path / name / LOCK).exists() for name in names)  # held anew
    assert capsys.readouterr().out.splitlines() == [
        f"openrlhf_sagc: {flag} {tmp_path}/{name} had the {what} of an earlier run, and is {tmp_path}/{name}.earlier-1 now"
        for flag, name, what in [
            ("--ckpt.output_dir", "trained", "model"),
            ("--ckpt.path", "checkpoints", "checkpoints"),
            ("--logger.tensorboard_dir", "logs/run", "log"),
        ]
    ]
    begin(args)
    assert not capsys.readouterr().out  # nothing is left to rename
    write(tmp_path / "trained/model.safetensors")
    begin(args)
    assert files(tmp_path / "trained.earlier-2") == {"model.safetensors"} and not files(tmp_path / "trained")


def test_what_is_in_a_folder_goes_with_it(tmp_path, args, capsys):
    """By default --ckpt.path is in --ckpt.output_dir."""
    args.ckpt.path, args.logger.tensorboard_dir = str(tmp_path / "trained/checkpoints"), None
    (tmp_path / "checkpoints").rename(tmp_path / "trained/checkpoints")
    before = files(tmp_path / "trained")
    begin(args)
    assert files(tmp_path / "trained.earlier-1") == before and (tmp_path / "trained/checkpoints" / LOCK).exists()
    assert len(capsys.readouterr().out.splitlines()) == 1
    write(tmp_path / "trained/checkpoints/_actor/global_step1/metric.json")  # without a model in trained
    begin(args)
    assert (tmp_path / "trained/checkpoints.earlier-1/_actor/global_step1/metric.json").exists()


def test_a_lock_a_log_and_an_empty_checkpoint_are_no_outputs(tmp_path, capsys):
    args = args_for(tmp_path / "checkpoints", load=False)
    for name in ("run.log", "run.jsonl", "notes.txt", "openrlhf_sagc.signal", "report.json", "rewards.csv"):
        write(tmp_path / "checkpoints/trained" / name)
    (tmp_path / "checkpoints/_actor/global_step1").mkdir(parents=True)
    before = files(tmp_path)
    begin(args)
    begin(args)
    assert files(tmp_path) == before and not capsys.readouterr().out


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_that_goes_on_moves_an_earlier_model_within_its_folder(tmp_path, args, inside, capsys):
    args.ckpt.load_enable = True
    if inside:
        (tmp_path / "checkpoints").rename(tmp_path / "trained/checkpoints")
        args.ckpt.path = str(tmp_path / "trained/checkpoints")
    before = files(tmp_path)
    begin(args)
    moved = {f"trained/{name}" for name in SAVED}
    assert files(tmp_path) == before - moved | {f"trained/earlier-1/{name}" for name in SAVED}
    assert capsys.readouterr().out == (
        f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained had the model of an earlier run, which is in "
        f"{tmp_path}/trained/earlier-1 now\n"
    )


@pytest.mark.parametrize("goes_on", [False, True])
def test_kept_steps_are_of_one_start(tmp_path, args, goes_on):
    """A run that goes on rolls out some of them again, and these may differ."""
    args.train, args.ckpt.load_enable = SimpleNamespace(rollouts_to=str(tmp_path / "kept")), goes_on
    for name in ("step-1.json", "step-1.safetensors", "step-2.safetensors.new"):
        write(tmp_path / "kept" / name)
    begin(args)
    assert len(files(tmp_path / "kept.earlier-1")) == 3 and not files(tmp_path / "kept")


def test_a_folder_that_the_run_does_not_hold_is_left_alone(tmp_path, args):
    args.ckpt.save_steps, args.ckpt.best_metric_key = -1, "none"
    before = files(tmp_path / "checkpoints")
    begin(args)
    assert files(tmp_path / "checkpoints") == before


def test_a_link_to_a_folder_stays_and_leads_to_the_new_one(tmp_path, args):
    (tmp_path / "disk").mkdir()
    (tmp_path / "trained").rename(tmp_path / "disk/trained")
    (tmp_path / "trained").symlink_to("disk/trained")
    begin(args)
    assert (tmp_path / "trained").is_symlink() and (tmp_path / "disk/trained" / LOCK).exists()
    assert set(SAVED) <= files(tmp_path / "disk/trained.earlier-1")


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_link_in_a_folder_is_moved_and_not_what_it_leads_to(tmp_path, args, goes_on):
    args.ckpt.load_enable = goes_on
    for name, target in {"model.safetensors": "../precious", "pytorch_model.bin": "config.json"}.items():
        (tmp_path / "trained" / name).unlink(missing_ok=True)
        (tmp_path / "trained" / name).symlink_to(target)
    (tmp_path / "precious").write_text("a thesis")
    begin(args)
    aside = tmp_path / ("trained/earlier-1" if goes_on else "trained.earlier-1")
    assert (aside / "model.safetensors").read_text() == (tmp_path / "precious").read_text() == "a thesis"
    assert (aside / "pytorch_model.bin").read_text() == "config.json"
    assert not os.path.lexists(tmp_path / "trained/model.safetensors")


def refused(tmp_path, args):
    """The line of a start that changes nothing."""
    before = files(tmp_path)
    with pytest.raises(SystemExit) as ended:
        begin(args)
    assert files(tmp_path) == before and "\n" not in str(ended.value)
    return str(ended.value)


def test_nothing_is_renamed_that_another_run_holds(tmp_path, args):
    with held_folders(args):
        assert "is in use by another run" in refused(tmp_path, args)
    other = args_for(tmp_path / "elsewhere", load=False)
    other.ckpt.output_dir = str(tmp_path / "trained/other")
    with held_folders(other):
        assert refused(tmp_path, args) == (
            f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained has the model of an earlier run, and cannot be moved aside "
            f"(another run writes to {tmp_path}/trained/other): give this run a separate folder"
        )
    begin(args)


def test_a_folder_whose_parent_is_anothers_is_one_line(tmp_path, args):
    reachable(tmp_path)
    assert as_nobody(lambda: set_earlier_outputs_aside(args, {"--ckpt.output_dir": args.ckpt.output_dir})) == (
        f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained has the model of an earlier run, and cannot be moved aside "
        f"({tmp_path} cannot be written to): give this run a separate folder"
    )


@pytest.mark.parametrize("name", ["trained", "checkpoints"])
def test_a_mount_is_not_renamed(tmp_path, args, name, monkeypatch):
    """A mount within a folder would go with it, and the new run would fill another disk."""
    args.ckpt.path = str(tmp_path / "trained/checkpoints")
    (tmp_path / "checkpoints").rename(args.ckpt.path)
    mount = {"trained": tmp_path / "trained", "checkpoints": Path(args.ckpt.path)}[name]
    monkeypatch.setattr(Path, "is_mount", lambda path: path == mount)
    assert (
        f"--ckpt.output_dir {tmp_path}/trained has the model of an earlier run, and cannot be moved aside ({mount} is a mount)"
        in (refused(tmp_path, args))
    )
    args.ckpt.output_dir = f"{tmp_path}/trained/2"  # a separate folder
    args.ckpt.path, args.logger.tensorboard_dir = f"{args.ckpt.path}/2", None
    begin(args)


@pytest.mark.parametrize("undone", ["rename", "replace"])
def test_a_rename_that_fails_is_one_line(tmp_path, args, monkeypatch, undone):
    def failing(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "rename", failing)
    args.ckpt.load_enable = undone == "replace"
    assert "cannot be moved aside (Invalid cross-device link): give this run a separate folder" in refused(
        tmp_path, args
    )


@pytest.mark.parametrize("through", ["", "link/"])
@pytest.mark.parametrize(
    "flag, path, folder",
    [
        *(((f"{model}.model_name_or_path"), "checkpoints/global_step5_hf", "checkpoints") for model in MODELS),
        ("data.prompt_dataset", "trained/vocab.json", "output_dir"),
        ("reward.remote_url", "trained/mine.py", "output_dir"),
        ("rollout.sagc.policy", "trained/mine.py:Mine", "output_dir"),
    ],
)
def test_what_the_run_reads_is_not_renamed(tmp_path, args, flag, path, folder, through):
    (tmp_path / "link").symlink_to(".")
    write(tmp_path / "trained/mine.py")
    *sections, name = flag.split(".")
    place = args
    for section in sections:
        vars(place).setdefault(section, SimpleNamespace())
        place = getattr(place, section)
    given = f"{tmp_path}/{through}{path}"
    setattr(place, name, [given] if name == "remote_url" else f"owner/name,{given}" if "data" in flag else given)
    assert refused(tmp_path, args).endswith(
        f"of an earlier run, and cannot be moved aside (--{flag} {given.removesuffix(':Mine')} is in it): give this run a "
        "separate folder"
    )
    args.ckpt.output_dir, args.ckpt.path = f"{tmp_path}/2", f"{tmp_path}/2/checkpoints"
    begin(args)
    assert (tmp_path / path.removesuffix(":Mine")).exists()


def test_the_working_folder_is_not_renamed(tmp_path, args, monkeypatch):
    monkeypatch.chdir(tmp_path / "trained")
    args.ckpt.output_dir = "."
    assert f"(the working folder {tmp_path}/trained is in it): give this run a separate folder" in refused(
        tmp_path, args
    )


def test_what_a_run_goes_on_with_is_not_renamed(tmp_path, args):
    args.ckpt.load_enable, args.train = True, SimpleNamespace(rollouts_to=str(tmp_path / "kept"))
    write(tmp_path / "kept/step-1.json")
    (tmp_path / "checkpoints").rename(tmp_path / "kept/checkpoints")
    args.ckpt.path = str(tmp_path / "kept/checkpoints")
    assert f"(--ckpt.path {args.ckpt.path} is in it): give this run a separate folder" in refused(tmp_path, args)

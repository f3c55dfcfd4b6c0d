"""What an earlier run has left is moved aside, and nothing else."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_files import args_for, as_nobody, reachable

from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
from openrlhf_sagc.run.output_folders import LOCK, held_folders

# As transformers 5 and peft save them, for one model in two files and another with adapters.
SAVED = [
    *("config.json", "generation_config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
    *("model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "adapter_model.bin", "adapter_config.json"),
    *("preprocessor_config.json", "pytorch_model.bin"),
]
OTHERS = ["notes.txt", "train.log", "report.json", "rewards.csv"]


def begin(args):
    with held_folders(args) as held:
        set_earlier_outputs_aside(args, held)


@pytest.fixture
def args(tmp_path):
    args = args_for(tmp_path / "checkpoints", load=False)
    args.ckpt.output_dir, args.logger.tensorboard_dir = str(tmp_path / "trained"), str(tmp_path / "logs")
    for name in [*SAVED, *OTHERS]:
        write(tmp_path / "trained" / name)
    for name in ("_actor/global_step5/mp_rank_00_model_states.pt", "_critic/latest", "global_step5_hf/config.json"):
        write(tmp_path / "checkpoints" / name)
    write(tmp_path / "checkpoints/best_global_step5_hf/config.json")
    write(tmp_path / "checkpoints/mine/config.json")
    write(tmp_path / "logs/run/events.out.tfevents.1")
    write(tmp_path / "logs/other/events.out.tfevents.1")
    return args


@pytest.mark.parametrize("goes_on", [False, True])
def test_kept_steps_are_of_one_start(tmp_path, args, goes_on):
    args.train, args.ckpt.load_enable = SimpleNamespace(rollouts_to=str(tmp_path / "kept")), goes_on
    for name in ("step-1.json", "step-1.safetensors", "step-2.safetensors.new", "notes.txt"):
        write(tmp_path / "kept" / name)
    begin(args)
    moved = {f"earlier-1/step-{name}" for name in ("1.json", "1.safetensors", "2.safetensors.new")}
    assert files(tmp_path / "kept") == moved | {"notes.txt"}


def write(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.name)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {LOCK, f"run/{LOCK}"}


def test_a_run_that_begins_anew_moves_model_checkpoints_and_log(tmp_path, args, capsys):
    begin(args)
    assert files(tmp_path / "trained") == {f"earlier-1/{name}" for name in SAVED} | set(OTHERS)
    assert files(tmp_path / "checkpoints") == {"mine/config.json"} | {
        f"earlier-1/{name}"
        for name in (
            *("_actor/global_step5/mp_rank_00_model_states.pt", "_critic/latest"),
            *("global_step5_hf/config.json", "best_global_step5_hf/config.json"),
        )
    }
    assert files(tmp_path / "logs") == {"run/earlier-1/events.out.tfevents.1", "other/events.out.tfevents.1"}
    trained = tmp_path / "trained"
    assert capsys.readouterr().out.splitlines()[0] == (
        f"openrlhf_sagc: --ckpt.output_dir {trained} had the model of an earlier run, now in {trained}/earlier-1"
    )
    begin(args)
    assert not capsys.readouterr().out  # nothing is left to move
    for name in SAVED:
        write(trained / name)
    begin(args)
    assert files(trained) == {f"earlier-{n}/{name}" for name in SAVED for n in (1, 2)} | set(OTHERS)


def test_a_run_that_goes_on_moves_a_finished_model_alone(tmp_path, args):
    before = {name: files(tmp_path / name) for name in ("checkpoints", "logs")}
    args.ckpt.load_enable = True
    begin(args)
    assert {name: files(tmp_path / name) for name in before} == before
    assert files(tmp_path / "trained") == {f"earlier-1/{name}" for name in SAVED} | set(OTHERS)


def test_a_folder_that_the_run_does_not_hold_is_left_alone(tmp_path, args):
    args.ckpt.save_steps, args.ckpt.best_metric_key = -1, "none"
    before = files(tmp_path / "checkpoints")
    begin(args)
    assert files(tmp_path / "checkpoints") == before


def test_a_link_is_moved_and_not_what_it_leads_to(tmp_path, args):
    (tmp_path / "precious").write_text("a thesis")
    weights = tmp_path / "trained" / "model.safetensors"
    weights.symlink_to(tmp_path / "precious")
    begin(args)
    assert not os.path.lexists(weights) and (tmp_path / "trained/earlier-1/model.safetensors").is_symlink()
    assert (tmp_path / "precious").read_text() == "a thesis"


def test_nothing_is_moved_that_another_run_holds(tmp_path, args):
    before = files(tmp_path)
    with held_folders(args):
        with pytest.raises(SystemExit, match="is in use by another run"):
            begin(args)
    assert {name for name in files(tmp_path) if LOCK not in name} == before


def test_what_cannot_be_moved_is_one_line(tmp_path, args):
    reachable(tmp_path)
    (tmp_path / "trained").chmod(0o1777)  # where nobody may move another user's files

    def move():
        set_earlier_outputs_aside(args, {"--ckpt.output_dir": args.ckpt.output_dir})

    assert as_nobody(move) == (
        f"openrlhf_sagc: --ckpt.output_dir {tmp_path}/trained has the model of an earlier run, which cannot be moved aside "
        "(Operation not permitted): give this run a separate folder"
    )
    assert set(SAVED) <= files(tmp_path / "trained")


@pytest.mark.parametrize("section", ["actor", "ref", "critic", "reward"])
@pytest.mark.parametrize("through", ["", "link/"])
def test_a_model_that_the_run_loads_is_not_moved(tmp_path, args, section, through):
    (tmp_path / "link").symlink_to(".")
    before, model = files(tmp_path), f"{tmp_path}/{through}checkpoints/global_step5_hf"
    getattr(args, section).model_name_or_path = model
    with pytest.raises(SystemExit) as refused:
        begin(args)
    assert str(refused.value) == (
        f"openrlhf_sagc: --{section}.model_name_or_path {model} is among the checkpoints of an earlier run in --ckpt.path, "
        "which a run that begins anew moves aside: give another --ckpt.path"
    )
    assert {name for name in files(tmp_path) if LOCK not in name} == before
    args.ckpt.load_enable = True
    begin(args)
    assert os.path.exists(model)


def test_a_link_to_a_model_and_data_that_the_run_loads_are_not_moved(tmp_path, args):
    (tmp_path / "checkpoints/global_step6_hf").symlink_to(tmp_path / "elsewhere")
    args.actor.model_name_or_path = str(tmp_path / "checkpoints/global_step6_hf")
    with pytest.raises(SystemExit, match="--actor.model_name_or_path"):
        begin(args)
    args.actor.model_name_or_path = "owner/name"
    args.data = SimpleNamespace(prompt_dataset=f"owner/name,{tmp_path}/trained/vocab.json")
    with pytest.raises(SystemExit, match=f"--data.prompt_dataset {tmp_path}/trained/vocab.json is among the model"):
        begin(args)


def test_links_lead_to_the_same_place_once_they_are_moved(tmp_path, args):
    write(tmp_path / "blobs/weights")
    links = {
        "trained/model.safetensors": "../blobs/weights",
        "trained/pytorch_model.bin": "config.json",  # moves along
        "checkpoints/_actor/latest": "../../blobs/weights",
        "checkpoints/_actor/inside": "global_step5/mp_rank_00_model_states.pt",
        "checkpoints/global_step6_hf": "../blobs",
    }
    for link, target in links.items():
        (tmp_path / link).unlink(missing_ok=True)
        (tmp_path / link).symlink_to(target)
    begin(args)
    assert (tmp_path / "trained/earlier-1/model.safetensors").read_text() == "weights"
    assert os.readlink(tmp_path / "trained/earlier-1/pytorch_model.bin") == "config.json"
    aside = tmp_path / "checkpoints/earlier-1"
    assert (aside / "_actor/latest").read_text() == "weights" and (aside / "global_step6_hf/weights").exists()
    assert os.readlink(aside / "_actor/inside") == "global_step5/mp_rank_00_model_states.pt"


@pytest.mark.parametrize("undone", [True, False])
def test_a_move_that_fails_halfway_is_undone_or_its_place_is_named(tmp_path, args, monkeypatch, undone):
    (tmp_path / "trained/config.json").unlink()
    (tmp_path / "trained/config.json").symlink_to("../logs")
    before, rename = files(tmp_path), Path.rename

    def failing(path, target):
        if path.name == "vocab.json" or not undone and "earlier-1" in path.parts:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    place = "" if undone else f", a part of it is in {tmp_path}/trained/earlier-1 now"
    line = rf"has the model of an earlier run, which cannot be moved aside \(Input/output error\){place}: give"
    with pytest.raises(SystemExit, match=line):
        begin(args)
    if undone:
        assert {name for name in files(tmp_path) if LOCK not in name} == before
        assert not (tmp_path / "trained/earlier-1").exists()

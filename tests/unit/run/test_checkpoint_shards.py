"""Which shards a checkpoint has to have, by the ranks and the flags of the run that saved it and of the one that goes on."""

import itertools
import zipfile

import pytest
from checkpoints import Checkpoints
from run_files import args_for

from openrlhf_sagc.run.checkpoints import SAVED, choose_checkpoint
from openrlhf_sagc.run.notes import write_notes


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
        "--actor.num_gpus_per_node 4 makes 4: use the same number, or start from its model"
    )
    checkpoints.args.actor.num_gpus_per_node = 2
    assert checkpoints.step_to_go_on_from() == 1


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"zero_stage": 3}, "was saved without --ds.zero_stage 3, and this run has 3: use the same stage, or"),
        (
            {"param_dtype": "bf16"},
            "was saved without --ds.param_dtype bf16, and this run has bf16: use the same type",
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

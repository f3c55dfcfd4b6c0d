"""The data of a run and of the checkpoint that it goes on from."""

import json

import pytest
from flags import arguments_with

from openrlhf_sagc.run import data
from openrlhf_sagc.run.data import FLAGS, check_data, describe_data, other_data, other_flags
from openrlhf_sagc.run.notes import NOTE

ROWS = [{"prompt": f"What is {i} + {i}?", "label": str(2 * i), "id": i} for i in range(50)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def args_of(path, **changes):
    flags = {
        "data.prompt_dataset": str(path),
        "data.prompt_probs": None,
        "data.prompt_split": "train",
        "data.max_samples": 10**8,
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.input_template": None,
        "data.apply_chat_template": False,
        "rollout.batch_size": 4,
        "rollout.n_samples_per_prompt": 8,
        "train.batch_size": 32,
        "train.num_episodes": 1,
        "train.seed": 1,
        "use_ms": False,
        "ckpt.save_steps": 1,
        "ckpt.load_enable": True,
        "eval.dataset": None,
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": 0.03,
        "actor.min_lr_ratio": 0.1,
        "actor.adam.lr": 1e-6,
        "actor.adam.betas": (0.9, 0.95),
        "actor.adam.eps": 1e-8,
        "actor.adam.weight_decay": 0.0,
        "actor.muon.lr": 0.02,
        "actor.muon.momentum": 0.95,
    }
    return arguments_with(flags | {name.replace("__", "."): value for name, value in changes.items()})


def test_another_seed_of_blended_data_is_named(tmp_path):
    sets = [
        write(tmp_path / f"{name}.jsonl", [{"prompt": f"{name}{i}", "label": "1"} for i in range(40)]) for name in "ab"
    ]
    blended = {"data__prompt_probs": "0.5,0.5"}
    saved, now = (describe_data(args_of(",".join(map(str, sets)), train__seed=seed, **blended)) for seed in (1, 2))
    line = other_data(json.loads(json.dumps(saved)), now)
    assert line.endswith(", which --data.prompt_probs draws by --train.seed 2 (was 1)")
    assert not other_data(saved, saved)


def test_what_a_note_says_is_shown_in_one_short_line(described):
    odd = described | {"template": {"data.input_template": ["\ud800\x1b[31m\n" + 60_000 * "x"]}, "flags": {}}
    line = other_data(odd, described)
    assert line.isprintable() and len(line) < 300 and line.encode()


@pytest.fixture
def described(tmp_path):
    return describe_data(args_of(write(tmp_path / "data.jsonl", ROWS)))


def test_the_same_content_is_the_same_data_wherever_it_is(tmp_path, described):
    import pandas as pd

    (tmp_path / "other").mkdir()
    assert described["rows"] == 50 and json.loads(json.dumps(described)) == described
    moved = write(tmp_path / "other" / "moved.jsonl", ROWS)
    assert describe_data(args_of(moved)) == described
    without = write(tmp_path / "fields.jsonl", [{"label": row["label"], "prompt": row["prompt"]} for row in ROWS])
    assert describe_data(args_of(without)) == described
    renamed = write(tmp_path / "renamed.jsonl", [{"q": row["prompt"], "a": row["label"]} for row in ROWS])
    assert describe_data(args_of(renamed, data__input_key="q", data__label_key="a")) == described
    pd.DataFrame(ROWS).to_parquet(tmp_path / "data.parquet")
    assert describe_data(args_of(tmp_path / "data.parquet")) == described
    halves = [write(tmp_path / f"{i}.jsonl", ROWS[start : start + 25]) for i, start in enumerate((0, 25))]
    assert describe_data(args_of(",".join(map(str, halves)))) == described


@pytest.mark.parametrize(
    "rows, changes, difference",
    [
        (ROWS[:-1], {}, "the checkpoint's run had 50 prompts, and --data.prompt_dataset has 49"),
        (ROWS + ROWS[:1], {}, "the checkpoint's run had 50 prompts, and --data.prompt_dataset has 51"),
        (ROWS, {"data__max_samples": 40}, "the checkpoint's run had 50 prompts, and --data.prompt_dataset has 40"),
        (ROWS[::-1], {}, "others than those"),
        ([ROWS[1], ROWS[0], *ROWS[2:]], {}, "others than those"),
        ([*ROWS[:-1], ROWS[-1] | {"label": "7"}], {}, "others than those"),
        ([*ROWS[:-1], ROWS[-1] | {"prompt": "What is 49 + 49? "}], {}, "others than those"),
        (ROWS, {"data__label_key": "id"}, "others than those"),
        (ROWS, {"data__label_key": None}, "others than those"),
        (ROWS, {"data__input_template": "Q: {}\nA:"}, "had --data.input_template None, and this one has 'Q: {}\\nA:'"),
        (ROWS, {"data__apply_chat_template": True}, "had --data.apply_chat_template False, and this one has True"),
    ],
)
def test_other_data_are_told_apart(tmp_path, described, rows, changes, difference):
    now = describe_data(args_of(write(tmp_path / "now.jsonl", rows), **changes))
    assert difference in other_data(described, now) and "\n" not in other_data(described, now)


def test_texts_that_run_together_are_told_apart(tmp_path):
    """A digest of the bare texts would not tell where one ends."""
    first, second = ([{"prompt": a, "label": b} for a, b in rows] for rows in ([("ab", "c")], [("a", "bc")]))
    digests = [
        describe_data(args_of(write(tmp_path / f"{i}.jsonl", rows)))["digest"]
        for i, rows in enumerate((first, second))
    ]
    assert len(set(digests)) == 2


def test_labels_may_be_anything(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "\u2028"}], "label": {"answers": [1, 2.5, None]}}] * 3
    assert describe_data(args_of(write(tmp_path / "chat.jsonl", rows)))["rows"] == 3


def test_the_seed_that_blends_datasets_changes_the_data(tmp_path):
    halves = ",".join(str(write(tmp_path / f"{i}.jsonl", ROWS[i::2])) for i in (0, 1))
    one, two = (describe_data(args_of(halves, data__prompt_probs="0.5,0.5", train__seed=seed)) for seed in (1, 2))
    assert other_data(one, two)


def test_flags_that_changed_are_named(described):
    now = described | {"flags": described["flags"] | {"train.seed": 2, "rollout.sagc.group_sizes": [4, 8]}}
    assert other_flags(described, now) == (
        "--rollout.sagc.group_sizes '4 8' (was 4 8 16 32), --train.seed 2 (was 1)".replace("'4 8'", "4 8")
    )
    assert other_flags(described, described) == "" and set(described["flags"]) == set(FLAGS)


@pytest.mark.parametrize("saved", [{}, {"rows": "50"}, {"rows": 50, "digest": 7}, {"rows": 50, "digest": None}])
def test_unknown_data_do_not_differ(described, saved):
    assert other_data(saved, described) == "" and other_flags({"flags": [1]}, described) == ""


# --- before Ray starts -----------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path, described):
    folder = tmp_path / "global_step5"
    folder.mkdir()
    (folder / NOTE).write_text(json.dumps({"format": 1, **described}))
    return folder


def test_the_same_data_go_on_without_a_word(tmp_path, checkpoint, described, capsys):
    args = args_of(tmp_path / "data.jsonl")
    assert check_data(args, checkpoint) == described and not capsys.readouterr().out


def test_other_data_end_the_run_in_one_line_or_begin_the_episode_anew(tmp_path, checkpoint, capsys):
    other = write(tmp_path / "other.jsonl", ROWS[1:])
    with pytest.raises(SystemExit) as refused:
        check_data(args_of(other), checkpoint)
    assert str(refused.value) == (
        "openrlhf_sagc: the checkpoint's run had 50 prompts, and --data.prompt_dataset has 49: resume with that data, or give "
        "--rollout.resume_data anew to begin the episode anew with these, or start from the checkpoint's model"
    )
    check_data(args_of(other, rollout__resume_data="anew"), checkpoint)
    assert capsys.readouterr().out.endswith("has 49: the episode begins anew with these\n")


def test_other_flags_are_said(tmp_path, checkpoint, capsys):
    check_data(args_of(tmp_path / "data.jsonl", rollout__batch_size=8, train__seed=3), checkpoint)
    assert capsys.readouterr().out == (
        "openrlhf_sagc: global_step5 was saved with other flags, the run goes on with --rollout.batch_size 8 (was 4), "
        "--train.seed 3 (was 1)\n"
    )


@pytest.mark.parametrize("held", [None, [1], {"actor.adam.lr": 1e-6, "of another version": 1}])
def test_a_note_that_names_no_other_flags_of_the_optimizer_is_none(tmp_path, checkpoint, described, capsys, held):
    (checkpoint / NOTE).write_text(json.dumps({"format": 1, **described, "held": held}))
    assert check_data(args_of(tmp_path / "data.jsonl"), checkpoint) == described and not capsys.readouterr().out


@pytest.mark.parametrize(
    "choice, goes_on", [("same", "they are taken for the same"), ("anew", "the episode begins anew")]
)
def test_a_checkpoint_without_a_note_is_said(tmp_path, checkpoint, capsys, choice, goes_on):
    (checkpoint / NOTE).unlink()
    check_data(args_of(tmp_path / "data.jsonl", rollout__resume_data=choice), checkpoint)
    assert capsys.readouterr().out == (
        f"openrlhf_sagc: global_step5 does not say on which data it was trained: {goes_on}\n"
    )


def test_a_run_without_checkpoints_reads_nothing(monkeypatch):
    monkeypatch.setattr(data, "load_prompts", lambda args: pytest.fail("nobody needs them"))
    args = args_of("data.jsonl", ckpt__save_steps=-1, ckpt__load_enable=False)
    assert check_data(args, None) == {}

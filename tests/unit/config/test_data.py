"""What the rows hold: what would end a run or train nonsense is refused with its row, the rest is counted."""

import datetime
import decimal

import pytest
from cpu_stack import ROOT

from openrlhf_sagc.config.data import check_columns, check_rows
from openrlhf_sagc.config.datasets import load_sets, training_source

CHAT = "--data.apply_chat_template"
AGENT = ["--train.agent_func_path", "agent.py"]
GOOD = {"prompt": "What is 1 + 1?", "label": "2"}


def message(content="x", **more):
    return {"role": "user", "content": content} | more


@pytest.fixture
def look(arguments, data, refused):
    """look(rows, *flags): the line with which rows are refused, or empty."""

    def run(rows, *flags):
        args = arguments("--data.prompt_dataset", data(rows), "--data.label_key", "label", *flags)

        def check():
            source = training_source(args)
            for name, found in load_sets(args, source):
                check_columns(args, source, name, found.column_names)
                check_rows(args, source, name, found)

        return refused(check)

    return run


@pytest.mark.parametrize(
    "flags, line",
    [
        (["--data.input_key", "question"], "--data.input_key question: no such column in "),
        (["--data.input_key", "question"], "(there are prompt, label): use --data.input_key prompt"),
        (["--data.label_key", "answer"], "--data.label_key answer: no such column in "),
        (["--data.label_key", "answer"], "(there are prompt, label): use --data.label_key label"),
    ],
)
def test_a_column_that_is_not_there(look, flags, line):
    assert line in look([GOOD], *flags)


def test_columns_with_other_names_alone_are_listed(look):
    said = look([{"q": "a", "a": "b"}])
    assert "--data.input_key prompt: no such column in " in said and said.endswith("(there are q, a)")


def test_a_label_that_nobody_reads_is_said(arguments, capsys):
    args = arguments("--data.prompt_dataset", "x")
    check_columns(args, training_source(args), "x", ["prompt", "Answer"])
    assert (
        "no --data.label_key is given, so the reward gets no label: x has a column Answer" in capsys.readouterr().out
    )


WRONG = {
    "empty": ([], {"prompt": ""}, "row 17: the prompt is empty"),
    "blank": ([], {"prompt": " \n\t"}, "row 17: the prompt is empty"),
    "null": ([], {"prompt": None}, "row 17: the prompt is missing"),
    "key is missing": ([], {"other": 1}, "row 17: the prompt is missing"),
    "empty, to be templated": ([CHAT], {"prompt": ""}, "row 17: the prompt is empty"),
    "image in a text": ([CHAT], {"prompt": "<image>Find x."}, "row 17: the prompt has <image>, and there is no image"),
    "one messages' list": (
        [],
        {"prompt": [message()]},
        "row 17: the prompt is a list of messages: add --data.apply_chat",
    ),
    "one list of texts": ([], {"prompt": ["a", "b"]}, "row 17: the prompt is a list: use a text"),
    "one number": ([], {"prompt": 5}, "row 17: the prompt is a number: use a text"),
    "one dict": (
        [CHAT],
        {"prompt": {"text": "a"}},
        "row 17: the prompt is a dict: with --data.apply_chat_template use",
    ),
    "texts as a chat": (
        [CHAT],
        {"prompt": ["a", "b"]},
        "row 17: the prompt is a list with a text: use a text, or messages",
    ),
    "no messages": ([CHAT], {"prompt": []}, "row 17: the prompt is empty"),
    "blank messages": ([CHAT], {"prompt": [message(" ")]}, "row 17: the prompt is empty"),
    "no content": ([CHAT], {"prompt": [{"role": "user"}]}, "row 17: a message has no content (it has role)"),
    "null content": ([CHAT], {"prompt": [message(None)]}, "row 17: a message's content is null"),
    "no role": ([CHAT], {"prompt": [{"content": "a"}]}, "row 17: a message has no role (it has content)"),
    "other keys": (
        [CHAT],
        {"prompt": [{"from": "human", "value": "a"}]},
        "row 17: a message has no role (it has from, value): name the keys role and content",
    ),
    "content is a number": ([CHAT], {"prompt": [message(5)]}, "row 17: a message's content is a number: use a text"),
    "image in a message": (
        [CHAT],
        {"prompt": [message("<image>")]},
        "row 17: the prompt has <image>, and there is no image",
    ),
}


@pytest.mark.parametrize("flags, row, line", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_prompt_is_named_with_its_row(look, flags, row, line):
    rows = [GOOD] * 16 + [row | {"label": "1"}] + [GOOD] * 3
    said = look(rows, *flags)
    assert line in said and "(one row of 20, counted from 1)" in said
    assert not look([GOOD] * 20, *flags)


def test_all_rows_of_a_kind(look):
    chats = [{"prompt": [message()], "label": "1"}] * 9
    assert "row 1: the prompt is a list of messages: add --data.apply_chat_template (9 such rows of 9" in look(chats)
    assert not look(chats, CHAT)
    assert not look([{"prompt": [message([{"type": "text", "text": "a"}])], "label": "1"}], CHAT)
    assert not look([{"prompt": [message(), message(None, tool_calls=[{"x": 1}])], "label": "1"}], CHAT)
    numbers = [{"prompt": 5, "label": "1"}] * 9
    assert "row 1: the prompt is a number: use a text" in look(numbers)
    assert not look(numbers, "--data.input_template", "{} + 1 =")


def test_plain_chats_are_looked_at_in_arrow(look, monkeypatch):
    from openrlhf_sagc.config import data as module

    rows = [{"prompt": [{"role": "system", "content": "s"}, message(f"{i}")], "label": "1"} for i in range(25_000)]
    monkeypatch.setattr(module, "_prompt_problem", lambda *_: pytest.fail("each prompt is looked at"))
    assert not look(rows, CHAT)
    monkeypatch.undo()
    rows[20_001]["prompt"][1]["content"] = None
    rows[20_002]["prompt"] = [message(" ")]
    said = look(rows, CHAT)
    assert "row 20002: a message's content is null" in said


def test_how_many_and_what_to_do(look):
    rows = [{"prompt": "" if i % 3 == 2 else "a", "label": "1"} for i in range(12_000)]
    said = look(rows)
    assert "row 3: the prompt is empty (4000 such rows of 12000, counted from 1): drop these rows" in said


def test_an_image_that_is_there(look):
    rows = [{"prompt": "<image>Find x.", "label": "1", "images": ["x.png"]}] * 3
    vision = [CHAT, "--data.max_images_per_prompt", "1"]
    assert not look(rows, *vision) and "row 1: the prompt has <image>" in look(rows, CHAT)
    assert "row 4: the prompt has <image>" in look([*rows, rows[0] | {"images": []}], *vision)
    assert not look([{"prompt": "<image> is a tag of HTML", "label": "1"}])


def test_an_agent_may_make_its_own_prompts(look, capsys):
    rows = [GOOD, {"prompt": "", "label": "seed"}]
    assert not look(rows, *AGENT)
    assert (
        "row 2: the prompt is empty (one row of 2, counted from 1): the agent gets it as it is"
        in capsys.readouterr().out
    )
    assert "a message has no role" in look([{"prompt": [{"content": "a"}], "label": "1"}], *AGENT, CHAT)


def test_missing_labels_are_counted(look, capsys):
    rows = [GOOD] * 5 + [GOOD | {"label": None}] * 2 + [GOOD]
    assert not look(rows)
    assert "row 6 has no label (2 such rows of 8, counted from 1): if the reward needs one" in capsys.readouterr().out
    assert not look([GOOD | {"label": label} for label in (0, False, "", 1.5)])  # of many types
    assert "has no label" not in capsys.readouterr().out
    said = look([GOOD | {"label": None}] * 3)
    assert "--data.label_key label: no row of " in said and "drop it if the reward needs no labels" in said
    mixed = [GOOD | {"label": label} for label in (1, "x", None, [2])]
    assert not look(mixed)
    assert "row 3 has no label (1 such rows of 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    "row, what", [(b'{"prompt": "\xe9", "label": "1"}', "prompt"), (b'{"prompt": "a", "label": "\xe9"}', "label")]
)
def test_bytes_that_are_no_text(look, tmp_path, row, what):
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "a", "label": "1"}\n' * 2 + row)
    said = look([GOOD], "--data.prompt_dataset", tmp_path / "latin.jsonl")
    assert f"latin.jsonl: row 3 (counted from 1): the {what} is not UTF-8" in said


@pytest.mark.parametrize("text", ['[{"role": "user", "content": "x"}]', " [ {'from': 'human', 'value': 'x'}]"])
def test_a_conversation_as_text_is_said(look, capsys, text):
    rows = [GOOD] * 16 + [GOOD | {"prompt": text}] * 2
    assert not look(rows, CHAT)
    said = capsys.readouterr().out
    assert (
        "row 17: the prompt is the JSON text of a conversation, which the chat template takes for one user message (2 such"
        in said
    )
    assert not look(rows) and not look([GOOD | {"prompt": "[{x}]: what is it?"}], CHAT)
    assert "JSON text" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "label, kind",
    [
        (b"a", "binary"),
        (datetime.datetime(2020, 1, 1), "timestamp"),
        ({"at": [datetime.date(2020, 1, 1)]}, "date32"),
        (decimal.Decimal("1.5"), "decimal128"),
        ({"a": ["1", None]}, ""),
        (["a"], ""),
    ],
)
def test_labels_that_no_server_can_be_sent(arguments, refused, tmp_path, label, kind):
    import datasets
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"prompt": "x", "label": label}] * 3), path)
    rows = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path))

    def look(*flags):
        args = arguments("--data.prompt_dataset", path, "--data.label_key", "label", *flags)
        return refused(check_rows, args, training_source(args), "x", rows)

    said = look("--reward.remote_url", "http://h/get")
    assert bool(kind) == bool(said) and kind in said and (not kind or "which JSON cannot hold" in said)
    assert not look() and not look("--reward.remote_url", "http://h/get", *AGENT)


@pytest.mark.parametrize("label", ["#### ", "So 6 * 9.\n####", r"\boxed{}", r"It is $\boxed{ }$."])
def test_a_label_without_an_answer_is_told_with_its_row(look, label):
    """Only for the reward that would grade it 0, whatever the responses say."""
    rows = [GOOD | {"label": right} for right in ("#### 5", r"\boxed{5}", "5")] + [GOOD | {"label": label}]
    reward = ("--reward.remote_url", str(ROOT / "openrlhf_sagc/math_reward.py"))
    assert "--data.label_key label: row 4 of " in look(rows, *reward) and not look(rows[:3], *reward)
    assert not look(rows)

"""The study of drafts: public responses replayed, and what a step gains at that acceptance."""

import json

import pandas as pd
import pytest

WORDS = "one two three four five six seven eight nine ten".split()
ALONE, AGAIN = "siblings alone", "siblings and an earlier episode"


@pytest.fixture
def replayed(study, tmp_path):
    """replayed(lines, *flags): the rows for a file of these lines, by scenario and part."""

    def run(lines, *flags):
        file = tmp_path / "given.jsonl"
        file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
        table = pd.read_csv(study("drafts", "replay", file, *flags) / "replay.csv")
        return table.set_index(["scenario", "responses"])

    return run


def test_equal_responses_are_drafted_from_an_earlier_one_alone(replayed):
    tokens = list(range(100, 150))
    rows = replayed([{"responses": [tokens] * 4}, {"responses": [[token + 100 for token in tokens]] * 4}])
    assert rows.loc[(ALONE, "all"), "tokens an iteration"] == 1  # all of them are at the same place
    again = rows.loc[(AGAIN, "all")]
    assert again["tokens an iteration"] > 6 and again["accepted, %"] > 80
    short = replayed([{"responses": [tokens] * 4}], "--longest", 2)
    assert 2.5 < short.loc[(AGAIN, "all"), "tokens an iteration"] <= 3


def test_a_response_behind_its_sibling_is_drafted_from_it(replayed):
    text = " ".join(WORDS * 3)
    rows = replayed([{"completions": [text, "well well then " + text]}])
    assert rows.loc[(ALONE, "each group's longest"), "tokens an iteration"] > 1.5
    assert rows.loc[(ALONE, "tenth 1 of length"), "tokens"] < rows.loc[(ALONE, "tenth 6 of length"), "tokens"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("no json\n", "line 1 is no JSON"),
        ({"prompt": "x"}, "line 1 has no list of two responses or more under one of responses, completions"),
        ({"responses": ["alone"]}, "line 1 has no list of two"),
        ({"responses": [["a"], ["b"]]}, "line 1 has a response that is neither a text nor a list of tokens"),
        ({"responses": ["a b", [5, 6]]}, "line 1 has texts and lists of tokens: give responses of one kind"),
        ({"responses": [[True], [False]]}, "neither a text nor a list of tokens"),
        ({"responses": None, "prompt": 1}, "line 1 has no list of two"),
        ({"responses": ["", ""]}, "has no responses: give a JSONL file"),
        ("\n", "has no responses: give a JSONL file"),
    ],
)
def test_another_file_is_refused_in_a_line(replayed, line, why):
    with pytest.raises(SystemExit, match=why):
        replayed([line])


def test_a_replay_needs_a_file(study):
    with pytest.raises(SystemExit, match="replay takes a JSONL file"):
        study("drafts", "replay")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["table"], "is not there: make it by"),
        (["predict", "a.jsonl"], "predict takes no files: use replay a.jsonl"),
        (["--longest", "0"], "--longest 0 must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_a_line(study, words, why):
    with pytest.raises(SystemExit, match=why):
        study("drafts", *words)


def test_a_replay_of_few_responses_predicts_nothing(replayed, study):
    replayed([{"responses": ["a b c", "a b d"]}])
    with pytest.raises(SystemExit, match="has no tenth 10 of length: replay ten responses or more"):
        study("drafts", "--gpus", 16, "--seeds", 0)


def test_drafts_shorten_the_predicted_steps(study, small, tmp_path):
    module = small("drafts.run", PROMPTS=384)
    small("drafts.run", SETS={"short": module.SETS["Qwen2.5-Math, MATH"]})
    shown = {"scenario": AGAIN, "responses": "tenth 10 of length", "drafted an iteration": 4.8}
    (tmp_path / "out").mkdir()
    pd.DataFrame([{**shown, "tokens an iteration": tokens} for tokens in (3.0, 6.0)]).to_csv(
        tmp_path / "out/replay.csv", index=False
    )
    rows = pd.read_csv(study("drafts", "--gpus", 16, "--seeds", 0) / "predicted.csv")
    assert 1.1 < rows["generation_seconds, times"].item() < 3.0  # at the lower acceptance

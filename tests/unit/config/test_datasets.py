"""Data that cannot be loaded: the cause with its line, the splits there are, the two counts."""

import pytest

from openrlhf_sagc.config.datasets import count, evaluation_source, load_prompts, load_sets, training_source

GOOD = '{"prompt": "a", "label": "1"}\n'


def sets(args, source=training_source):
    return list(load_sets(args, source(args)))


@pytest.mark.parametrize(
    "name, text, line",
    [
        (
            "cut.jsonl",
            GOOD + '{"prompt": "b", "label": "2"\n' + GOOD,
            "cut.jsonl is not JSON in line 2: Expecting ',' delimiter",
        ),
        ("quote.jsonl", GOOD * 3 + '{"prompt": "b, "label": 2}\n', "is not JSON in line 4: "),
        ("comma.jsonl", GOOD + '{"prompt": "b",}\n', "is not JSON in line 2: "),
        ("text.jsonl", GOOD + "no json\n", "is not JSON in line 2: Expecting value (column 1)"),
        ("list.json", '[{"prompt": "a"},\n {"prompt": "b"\n', "is not JSON in line 3: "),
        ("empty.jsonl", "", "empty.jsonl is empty"),
        ("blank.jsonl", "\n\n", "blank.jsonl has no rows"),
        ("none.json", "[]", "none.json has no rows"),
        ("ragged.csv", "prompt,label\na,1\nb,2,3,4\n", "ragged.csv cannot be loaded: ParserError: "),
        ("empty.csv", "", "empty.csv is empty"),
    ],
)
def test_the_file_and_the_line_are_named(arguments, data, refused, name, text, line):
    said = refused(sets, arguments("--data.prompt_dataset", data(text, name)))
    assert line in said and said.startswith("--data.prompt_dataset ")
    assert "error occurred while generating" not in said


@pytest.mark.parametrize("flag, source", [("prompt_split", training_source), ("split", evaluation_source)])
def test_a_split_that_is_not_there(arguments, data, refused, flag, source):
    path = data(GOOD)
    section = "data" if source is training_source else "eval"
    args = arguments("--data.prompt_dataset", path, "--eval.dataset", path, f"--{section}.{flag}", "test")
    assert refused(sets, args, source) == f"--{section}.{flag} test: no such split in {path} (there are train)"


@pytest.mark.parametrize(
    "probabilities, line",
    [
        ("0.5", "--data.prompt_probs 0.5 has 1 numbers and --data.prompt_dataset 2 sets: give one for each"),
        ("0.5,0.3,0.2", "has 3 numbers and --data.prompt_dataset 2 sets"),
        ("0.5,", "use numbers above 0 whose sum is 1"),
        ("0.5,half", "use numbers with commas between them"),
        ("0.5,0.6", "use numbers above 0 whose sum is 1"),
        ("0,1", "use numbers above 0 whose sum is 1"),
    ],
)
def test_probabilities(arguments, data, refused, probabilities, line):
    both = f"{data(GOOD)},{data(GOOD, 'b.jsonl')}"
    assert line in refused(sets, arguments("--data.prompt_dataset", both, "--data.prompt_probs", probabilities))


def test_names_that_are_missing(arguments, data, refused):
    path = data(GOOD)
    assert "--data.prompt_dataset is not given: name a" in refused(sets, arguments())
    said = refused(sets, arguments("--data.prompt_dataset", f"{path},"))
    assert said.endswith(f"has a comma without a name: use {path}")
    said = refused(sets, arguments("--data.prompt_dataset", "/none/x.jsonl"))
    assert said.startswith("--data.prompt_dataset /none/x.jsonl cannot be loaded: FileNotFoundError: ")


def test_sets_have_the_rows_that_a_run_takes(arguments, data):
    names = f"{data(GOOD * 3)},{data(GOOD * 4, 'b.jsonl')},{data(GOOD, 'c.jsonl')}"
    args = arguments("--data.prompt_dataset", names, "--data.max_samples", "5")
    found = sets(args)
    assert [len(rows) for _, rows in found] == [3, 2] and len(load_prompts(args)) == 5
    assert count(args, training_source(args), [3, 2]) == 5
    blended = arguments("--data.prompt_dataset", names, "--data.prompt_probs", "0.4,0.4,0.2")
    assert [len(rows) for _, rows in sets(blended)] == [3, 4, 1]
    assert count(blended, training_source(blended), [3, 4, 1]) == len(load_prompts(blended)) > 8


def test_sets_that_do_not_go_together(arguments, data, refused):
    other = data([{"prompt": "a", "label": {"x": 1}}], "b.jsonl")
    args = arguments("--data.prompt_dataset", f"{data(GOOD)},{other}")
    assert "cannot be put together: ValueError: " in refused(count, args, training_source(args), [1, 1])

"""Problem sets from the hub and from files."""

import sys
from types import SimpleNamespace

import pytest
from files import write_jsonl
from lib.evaluation import problem_sets


def test_presets_from_files(tmp_path):
    gsm8k = write_jsonl(tmp_path / "gsm8k.jsonl", [{"question": "q", "answer": "1 + 1\n#### 2"}])
    (problem,) = problem_sets.load_problems("gsm8k", gsm8k)
    assert problem["prompt"] == "q\nPlease reason step by step, and put your final answer within \\boxed{}."
    row = {"Question": "Which?", "Correct Answer": "right", **{f"Incorrect Answer {i}": f"no {i}" for i in (1, 2, 3)}}
    gpqa = write_jsonl(tmp_path / "gpqa.jsonl", [row] * 40)
    problems = problem_sets.load_problems("gpqa_diamond", gpqa)
    assert problems == problem_sets.load_problems("gpqa_diamond", gpqa)
    assert {problem["label"] for problem in problems} == set("ABCD")
    assert all(f"\n{problem['label']}) right\n" in problem["prompt"] + "\n" for problem in problems)
    assert all(problem["prompt"].count(") no ") == 3 for problem in problems)


@pytest.mark.parametrize("name", problem_sets.PRESETS)
def test_presets_ask_the_hub_for_their_columns(name, monkeypatch):
    preset, asked = problem_sets.PRESETS[name], []

    def load_dataset(path, config, split):
        asked.append((path, config, split))
        keys = (preset.input_key, preset.label_key, *preset.wrong_keys)
        return [{key: f"{key} {i}" for key in keys} for i in range(2)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert len(problem_sets.load_problems(name)) == 2
    assert asked == [(preset.hub_name, preset.config, preset.split)]


def test_keys_templates_and_chats(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    path = write_jsonl(tmp_path / "set.jsonl", [{"x": "q", "y": 3}, {"x": chat, "y": "\u2028"}])
    with pytest.raises(SystemExit, match="line 2: 'y' is empty: grading needs a gold answer"):
        problem_sets.load_problems(str(path), input_key="x", label_key="y")
    first, second = problem_sets.load_problems(
        str(path), input_key="x", label_key="y", template="<{}>", label_needed=False
    )
    assert first == {"prompt_id": 0, "prompt": "<q>", "label": "3"}
    assert second["prompt"] == [chat[0], {"role": "user", "content": "<q>"}]

"""The reward as OpenRLHF calls it: loaded by path, in threads, one sample at a time."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lib.evaluation import problem_sets
from real_sets import DATA, real_sets

import openrlhf_sagc.math_reward

FILE = Path(openrlhf_sagc.math_reward.__file__)
PROMPT = r"<|im_start|>user\nPut the answer in \boxed{}. Example: \boxed{5}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def reward():
    """reward(response, label, prompt=PROMPT): the dict for one sample, asked for in a thread."""
    spec = importlib.util.spec_from_file_location("reward_func", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def ask(response, label, prompt=PROMPT):
        answers = []

        def call():
            answers.append(module.reward_func([prompt + response + "<|im_end|>"], [prompt], [label]))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(120)
        (answer,) = answers
        return answer

    return ask


@pytest.mark.parametrize(
    ("response", "label", "right", "found"),
    [
        (r"so \boxed{\frac{10}{2}}", "5", 1, 1),
        ("so\nAnswer: 5", "5", 1, 1),
        ("#### 5", "#### 5", 1, 1),
        (r"\boxed{6}", "5", 0, 1),
        (r"\boxed{3+3}", "5", 0, 1),
        ("5", "5", 0, 0),  # the example in the prompt is no answer
        ("", "5", 0, 0),
        (r"\boxed{5}", 5, 1, 1),
        (r"\boxed{x=5}", r"We get \boxed{5}.", 1, 1),
    ],
)
def test_reward(reward, response, label, right, found):
    answer = reward(response, label)
    assert answer["rewards"].tolist() == answer["scores"].tolist() == [right]
    assert {name: value.tolist() for name, value in answer["extra_logs"].items()} == {
        "answer_found": [found],
        "comparison_stopped": [0],
    }


@pytest.mark.parametrize("label", [None, float("nan"), "", " ", r"So \boxed{}."])
def test_a_label_without_an_answer_is_an_error_and_no_word(label):
    with pytest.raises(ValueError, match="has no answer: give every row one"):
        openrlhf_sagc.math_reward.reward_func([PROMPT + r"\boxed{None}"], [PROMPT], [label])


def test_a_label_with_two_boxes_is_both(reward):
    label = r"Both work, so the answers are $\boxed{-4}$ and $\boxed{9}$."
    assert reward(r"\boxed{9}", label)["rewards"].tolist() == [0]
    assert reward(r"\boxed{9, -4}", label)["rewards"].tolist() == [1]


def test_an_answer_inside_a_thought_is_none(reward):
    answer = reward(r"So \boxed{5}.</think> That is all.", "5", PROMPT + "<think>\n")
    assert answer["rewards"].tolist() == [0] and answer["extra_logs"]["answer_found"].tolist() == [0]
    assert reward(r"So 4.</think> \boxed{5}", "5", PROMPT + "<think>\n")["rewards"].tolist() == [1]


def test_a_comparison_that_hangs_is_wrong_and_logged(reward):
    answer = reward(r"\boxed{9^{9^{9^{9}}}}", "5")
    assert answer["rewards"].tolist() == [0] and answer["extra_logs"]["comparison_stopped"].tolist() == [1]


def test_without_math_verify_it_does_not_load():
    code = f"import sys; sys.modules['math_verify'] = None; import runpy; runpy.run_path({str(FILE)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1 and "pip install math-verify" in run.stderr.splitlines()[-1]


@real_sets
def test_real_answers(reward, name, label_key, solution_key):
    """Right ones are right; no other problem's answer is, unless it is the same text without its looks."""
    rows = [row for _, row in problem_sets.read_jsonl(DATA / f"{name}.jsonl", "")][:150]
    golds = [openrlhf_sagc.math_reward.extract_answer(str(row[label_key])) or str(row[label_key]) for row in rows]
    for i, (row, gold) in enumerate(zip(rows, golds)):
        texts = [rf"Thus $\boxed{{{gold}}}$.", f"Thus\nAnswer: {gold}"] + ([row[solution_key]] if solution_key else [])
        assert all(reward(text, row[label_key])["rewards"].tolist() == [1] for text in texts), texts
        other = golds[i - 1]
        if openrlhf_sagc.math_reward.decided(gold, other) is False:
            assert reward(rf"\boxed{{{other}}}", row[label_key])["rewards"].tolist() == [0], (gold, other)

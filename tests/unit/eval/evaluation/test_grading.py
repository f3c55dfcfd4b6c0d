import csv

import pytest
from cpu_stack import ROOT
from evaluation import grading, problem_sets
from hypothesis import given
from hypothesis import strategies as st

DATA = ROOT.parent / "shared" / "data"
COUNTDOWN = ROOT / "train_scripts/countdown/reward.py"
FORMS = list(csv.DictReader((ROOT / "eval/evaluation/answer_forms.csv").open()))
NOT_KNOWN_EQUAL = {r"\text{an ellipse}", r"52_{\text{eight}}"}


def answered(answers, label):
    return {"label": label, "responses": [rf"\boxed{{{x}}}" if x else "?" for x in answers]}


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so \boxed{5}", "5"),
        (r"\boxed{1} no, \boxed {\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{x \right.}", r"\left\{x \right."),
        (r"{ \boxed{4} \boxed{3", "4"),
        (r"\boxed{7 \boxed{8}}", "8"),
        (r"\fbox{6} }}", "6"),
        ("a\n#### 1,000 \n", "1,000"),
        ("#### 18\n\\boxed{2}", "2"),
        ("the answer is 5", None),
        ("", None),
    ],
)
def test_extract_answer(response, answer):
    assert grading.extract_answer(response) == answer


@pytest.mark.parametrize("case", FORMS, ids=lambda case: f"{case['gold']} | {case['answer']}")
def test_forms_of_answers(case):
    equal = grading.decided(case["gold"], case["answer"])
    equal = grading.verified((case["gold"], case["answer"])) if equal is None else equal
    assert equal == (case["equal"] == "1" and case["answer"] not in NOT_KNOWN_EQUAL)


@given(st.fractions(), st.fractions())
def test_fractions(x, y):
    def latex(z):
        return rf"\frac{{{z.numerator}}}{{{z.denominator}}}"

    assert grading.decided(latex(x), latex(x))
    assert grading.verified((latex(x), latex(y))) == (x == y)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers(x, y):
    for form in (f"{x}", f"{x:,}", f"{x:,}".replace(",", "{,}"), f"${x}.0$", rf"\text{{{x}}}", f"{x}."):
        assert grading.decided(str(x), form) is True
        assert grading.decided(str(y), form) is (x == y)


@given(st.text(alphabet=r"\{}boxedfrac1234,.()^_$ ", max_size=60))
def test_any_text_is_graded(text):
    answer = grading.extract_answer(r"\boxed{" + text)
    assert grading.decided("12", answer or text) in (True, False, None)


def test_comparisons_that_hang_are_stopped(monkeypatch):
    monkeypatch.setattr(grading, "COMPARISON_SECONDS", 4)
    rows = [answered(["9^{9^{9^{9}}}", r"\frac{2}{2}", "2-1", "2"], "1")]
    assert grading.grade_math(rows) == 1
    assert rows[0]["correct"] == [False, True, True, False] and rows[0]["votes"][1:3] == [0, 0]


def test_equal_wrong_answers_vote_together():
    rows = [answered(["0.5", r"\frac{1}{2}", "2", "", "1/2", "7"], label="#### 7")]
    assert grading.grade_math(rows) == 0
    votes = rows[0]["votes"]
    assert votes[0] == votes[1] == votes[4] != votes[2] and votes[3] is None and votes[5] == 0
    assert rows[0]["answers"][3] is None and rows[0]["correct"] == [False] * 5 + [True]


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the problem sets in ../shared/data")
@pytest.mark.parametrize(
    ("name", "label_key", "solution_key"),
    [
        ("gsm8k_test", "answer", "answer"),
        ("math500_test", "answer", "solution"),
        ("aime24", "answer", None),
        ("aime25", "answer", None),
    ],
)
def test_gold_answers_of_real_sets(name, label_key, solution_key):
    rows = [row for _, row in problem_sets.read_jsonl(DATA / f"{name}.jsonl", "")]
    golds = [grading.extract_answer(str(row[label_key])) or str(row[label_key]) for row in rows]
    boxed = [rf"\boxed{{{gold}}}" for gold in golds]
    for responses in [boxed] + ([[row[solution_key] for row in rows]] if solution_key else []):
        assert all(grading.decided(gold, grading.extract_answer(text)) for gold, text in zip(golds, responses))
    numbers = [(gold, other) for gold, other in zip(golds, golds[1:]) if grading.number(gold) != grading.number(other)]
    assert not any(grading.decided(gold, other) for gold, other in numbers)


def test_reward_file_of_the_quickstart():
    prompt = "use 4 15 6 to make 13 :"
    texts = [" 13 -4 = 9 -15 = -6 +6 = 0 ! <eos>", " 13 -4 = 9 stuck <eos>"]
    rows = [{"prompt_id": 0, "prompt": prompt, "label": "13", "responses": texts}]
    grading.grade_with_file(rows, COUNTDOWN)
    assert rows[0]["rewards"] == [1.0, 0.0] and rows[0]["correct"] == [True, False] and "votes" not in rows[0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1", "no reward_func could be loaded: AttributeError"),
        ("def reward_func(queries, prompts, labels): raise KeyError('gold')", "prompt_id 7, response 0: KeyError"),
        (
            "def reward_func(queries, prompts, labels): return {'rewards': [float('nan')]}",
            "response 0: ValueError.*nan",
        ),
        (
            "import os\ndef reward_func(queries, prompts, labels): os._exit(3)",
            "prompt_id 7, response 0: ProcessExpired",
        ),
        ("import time\ndef reward_func(queries, prompts, labels): time.sleep(60)", "prompt_id 7, response 0: Timeout"),
    ],
)
def test_reward_files_that_fail(code, message, tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "REWARD_SECONDS", 1 if "Timeout" in message else 30)
    (tmp_path / "reward.py").write_text(code)
    with pytest.raises(SystemExit, match=message):
        grading.grade_with_file(
            [{"prompt_id": 7, "prompt": "", "label": "", "responses": ["1"]}], tmp_path / "reward.py"
        )

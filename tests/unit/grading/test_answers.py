import csv
import time

import pytest
from cpu_stack import ROOT
from evaluation import problem_sets
from hypothesis import given
from hypothesis import strategies as st
from real_sets import DATA, real_sets

from openrlhf_sagc.grading import algebra, answers

FORMS = list(csv.DictReader((ROOT / "eval/evaluation/answer_forms.csv").open()))
NOT_KNOWN_EQUAL = {r"\text{an ellipse}", r"52_{\text{eight}}"}


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
        ("Answer: 34", "34"),
        ("so\n**Final Answer:** $\\frac12$ \nDone", "$\\frac12$"),
        ("Answer: \\boxed{2}\nAnswer: 3", "2"),
        ("#### Step 1\n7\nAnswer: 8", "8"),
        ("#### Answer: 9", "9"),
        ("Answer: 1\n#### 2", "2"),
        ("Answer:\n3", None),
        ("the answer is 5", None),
        ("my answer: 5", None),
        ("", None),
    ],
)
def test_extract_answer(response, answer):
    assert answers.extract_answer(response) == answer


@pytest.mark.parametrize(
    ("query", "prompt", "response"),
    [
        ("<s>1+1?</s>2</s></s>", "1+1?</s>", "2"),
        (r"e.g. \boxed{3} 1+1?2<|im_end|>" + "\n<|endoftext|>", r"e.g. \boxed{3} 1+1?", "2"),
        ("x" * 64 + "a <b> c", "cut off" + "x" * 64, "a <b> c"),
        ("respelled: 2", "re-spelled: ", "respelled: 2"),
        ("2", "", "2"),
        ("1+1? 1+1?2", "1+1?", " 1+1?2"),
    ],
)
def test_response_of(query, prompt, response):
    assert answers.response_of(query, prompt) == response


@pytest.mark.parametrize("case", FORMS, ids=lambda case: f"{case['gold']} | {case['answer']}")
def test_forms_of_answers(case):
    equal = answers.decided(case["gold"], case["answer"])
    equal = algebra.verified((case["gold"], case["answer"])) if equal is None else equal
    assert equal == (case["equal"] == "1" and case["answer"] not in NOT_KNOWN_EQUAL)


@given(st.fractions(), st.fractions())
def test_fractions(x, y):
    def latex(z):
        return rf"\frac{{{z.numerator}}}{{{z.denominator}}}"

    assert answers.decided(latex(x), latex(x))
    assert algebra.verified((latex(x), latex(y))) == (x == y)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers(x, y):
    for form in (f"{x}", f"{x:,}", f"{x:,}".replace(",", "{,}"), f"${x}.0$", rf"\text{{{x}}}", f"{x}."):
        assert answers.decided(str(x), form) is True
        assert answers.decided(str(y), form) is (x == y)


@given(st.text(alphabet=r"\{}boxedfrac1234,.()^_$ #:*answer<>", max_size=60))
def test_any_text_is_graded(text):
    answer = answers.extract_answer(r"\boxed{" + text)
    answers.extract_answer(text)
    assert answers.decided("12", answer or text) in (True, False, None)


@pytest.mark.parametrize("text", [" ", "\n", "{", "}", "\\boxed{", "#### ", "Answer: a ", "<x>", "1,000 ", "(", "$"])
def test_long_responses_are_read_in_time_that_grows_with_them(text):
    """A response of 20 thousand tokens; what takes a square of it would hold the engine for minutes."""
    response = text * (80_000 // len(text)) + "b"
    started = time.process_time()
    answer = answers.extract_answer(answers.response_of("prompt" + response, "prompt"))
    answers.decided("5", answer or response)
    answers.decided("5", (answer or response)[:4000])
    assert time.process_time() - started < 2


@real_sets
def test_gold_answers_of_real_sets(name, label_key, solution_key):
    rows = [row for _, row in problem_sets.read_jsonl(DATA / f"{name}.jsonl", "")]
    golds = [answers.extract_answer(str(row[label_key])) or str(row[label_key]) for row in rows]
    boxed, stated = [rf"\boxed{{{gold}}}" for gold in golds], [f"Thus:\n**Answer:** {gold}" for gold in golds]
    for responses in [boxed, stated] + ([[row[solution_key] for row in rows]] if solution_key else []):
        assert all(answers.decided(gold, answers.extract_answer(text)) for gold, text in zip(golds, responses))
    numbers = [(gold, other) for gold, other in zip(golds, golds[1:]) if answers.number(gold) != answers.number(other)]
    assert not any(answers.decided(gold, other) for gold, other in numbers)

import csv
import time

import pytest
from cpu_stack import ROOT
from hypothesis import given
from hypothesis import strategies as st
from lib.evaluation import problem_sets
from real_sets import DATA, real_sets

from openrlhf_sagc.grading import answers, comparison, numbers
from openrlhf_sagc.grading.extraction import extract_answer

FORMS = list(csv.DictReader((ROOT / "eval/studies/grader/answer_forms.csv").open()))
NOT_KNOWN_EQUAL = {r"52_{\text{eight}}"}


@pytest.mark.parametrize("case", FORMS, ids=lambda case: f"{case['gold']} | {case['answer']}")
def test_forms_of_answers(case):
    equal = answers.decided(case["gold"], case["answer"])
    equal = comparison.equal(case["gold"], case["answer"]) if equal is None else equal
    assert equal == (case["equal"] == "1" and case["answer"] not in NOT_KNOWN_EQUAL)


@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_an_empty_answer_equals_nothing(empty):
    assert answers.decided(empty, empty) is False and answers.decided("5", empty) is False


def test_a_long_answer_is_right_only_as_the_same_text():
    long = "1+" * 600 + "1"
    assert answers.decided(long, long) is True and answers.decided("601", long) is False


@given(st.fractions(), st.fractions())
def test_fractions(x, y):
    def latex(z):
        return rf"\frac{{{z.numerator}}}{{{z.denominator}}}"

    assert answers.decided(latex(x), latex(x))
    assert comparison.equal(latex(x), latex(y)) == (x == y)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers(x, y):
    for form in (f"{x}", f"{x:,}", f"{x:,}".replace(",", "{,}"), f"${x}.0$", rf"\text{{{x}}}", f"{x}."):
        assert answers.decided(str(x), form) is True
        assert answers.decided(str(y), form) is (x == y)


@given(
    st.text(alphabet=r"\{}boxedfrac1234,.()^_$ #:*answer<>⟦⟧&|=~%°", max_size=60),
    st.sampled_from(["12", "(1,2)", "x=1", r"\{x|x>1\}"]),
)
def test_any_text_is_graded(text, gold):
    assert answers.decided(gold, text) in (True, False, None)
    assert answers.decided(text, text) is (True if answers.plainly_same(text, text) else False)


LONG = [
    " ",
    "{",
    "}",
    "(",
    "[",
    "\\{",
    "$",
    "1,",
    "1,000 ",
    "1 ",
    "\\text{a}",
    "\\frac",
    "x=",
    "\\cup",
    "\\begin{pmatrix}",
    "a and ",
    "⟦",
    "0.",
]
LONG += [
    "1 2/3 ",
    "\\text{ cm }",
    "\\text",
    "the ",
    "(1,2),",
    "x>1 or ",
    "\\pm",
    "|",
    "5°",
    "\\sin",
    "^",
    "_",
    "A",
    "AB,",
    "\\\\",
    "\\left(",
    "\\frac\\pi",
    "\\frac{",
    "ﷺ",
    "½",
    "¹²",
    "a**",
    "C_2^5",
]


@pytest.mark.parametrize("text", LONG)
def test_the_longest_answers_are_decided_in_moments(text):
    """In the engine's own process, where a square of their length would be felt."""
    answer = text * (answers.MAX_CHARACTERS // len(text))
    started = time.process_time()
    for gold in ("5", answer[:-1] + "b", "1" + answer[1:]):
        answers.decided(gold, answer)
    assert time.process_time() - started < 3


@real_sets
def test_gold_answers_of_real_sets(name, label_key, solution_key):
    rows = [row for _, row in problem_sets.read_jsonl(DATA / f"{name}.jsonl", "")]
    golds = [extract_answer(str(row[label_key])) or str(row[label_key]) for row in rows]
    boxed, stated = [rf"\boxed{{{gold}}}" for gold in golds], [f"Thus:\n**Answer:** {gold}" for gold in golds]
    for responses in [boxed, stated] + ([[row[solution_key] for row in rows]] if solution_key else []):
        assert all(answers.decided(gold, extract_answer(text)) for gold, text in zip(golds, responses))
    values = [numbers.number(gold.removeprefix("x=")) for gold in golds]
    pairs = [(a, b) for a, b, x, y in zip(golds, golds[1:], values, values[1:]) if x != y]
    assert not any(answers.decided(gold, other) for gold, other in pairs)

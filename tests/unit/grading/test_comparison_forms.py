import csv
import time

import pytest
from cpu_stack import ROOT
from hypothesis import given
from hypothesis import strategies as st
from lib.evaluation import problem_sets
from real_sets import DATA, real_sets

from openrlhf_sagc.grading import comparison
from openrlhf_sagc.grading.cleaning import cleaned, number
from openrlhf_sagc.grading.extraction import extract_answer

FORMS = list(csv.DictReader((ROOT / "eval/studies/grader/answer_forms.csv").open()))


@pytest.mark.parametrize("case", FORMS, ids=lambda case: f"{case['gold']} | {case['answer']}")
def test_forms_of_answers(case):
    """Those that are lost are right ones that the grader does not know to be equal."""
    assert not case["lost"] or case["equal"] == "1"
    assert comparison.equal(case["gold"], case["answer"]) is (case["equal"] == "1" and not case["lost"])


def test_empty_and_long_answers():
    for empty in ("", " ", "\n"):
        assert all(comparison.decided(*pair) is False for pair in [(empty, empty), ("5", empty), (empty, "5")])
    long = "1+" * 600 + "1"
    assert comparison.decided(long, long) is True and comparison.decided("601", long) is False
    assert comparison.decided("½" * 100, " " + "½" * 100) is False  # long in LaTeX


@given(st.fractions(), st.fractions())
def test_fractions(x, y):
    a, b = (rf"{'-' * (z < 0)}\frac{{{abs(z.numerator)}}}{{{z.denominator}}}" for z in (x, y))
    assert comparison.decided(a, str(x)) is True and comparison.equal(a, b) == (x == y)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
def test_integers(x, y):
    for form in (f"{x}", f"{x:,}", f"{x:,}".replace(",", "{,}"), f"${x}.0$", rf"\text{{{x}}}", f"{x}."):
        assert comparison.decided(str(x), form) is True
        assert comparison.decided(str(y), form) is (x == y)
    for form in (f"--{abs(x)}", f"+-{abs(x)}", f"{x}?{y}", f"{x}'"):
        assert not comparison.equal(str(x), form) and not comparison.equal(str(-x), form)


@given(
    st.text(alphabet=r"\{}boxedfrac1234,.()_$ #:*answer<>⟦⟧&|=~%°[]", max_size=60),  # without powers, which may hang
    st.sampled_from(["12", "(1,2)", "x=1", r"\{x|x>1\}"]),
)
def test_any_text_is_graded(text, gold):
    assert comparison.equal(gold, text) in (True, False)
    assert comparison.decided(text, text) is (cleaned(text) != "" != text.strip())


LONG = r" |{|}|(|[|\{|$|1,|1,000 |1 |\text{a}|\frac|x=|\cup|\begin{pmatrix}|a and |⟦|0.|1 2/3 |\text{ cm }|\text|the |(1,2),|x>1 or "
LONG += r"|\pm|5°|\sin|^|_|A|AB,|\\|\left(|\frac\pi|\frac{|ﷺ|½|¹²|a**|C_2^5|1:|]2,5[|⟦cm⟧|1{,}|\{x\mid |{\over|\log_a"


@pytest.mark.parametrize("text", [*LONG.split("|"), "|"])
def test_the_longest_answers_are_decided_in_moments(text):
    """In the engine's own process, where a square of their length would be felt."""
    answer = text * (comparison.MAX_CHARACTERS // len(text))
    started = time.process_time()
    for gold in ("5", answer[:-1] + "b", "1" + answer[1:]):
        comparison.decided(gold, answer)
    assert time.process_time() - started < 3


@real_sets
def test_gold_answers_of_real_sets(name, label_key, solution_key):
    rows = [row for _, row in problem_sets.read_jsonl(DATA / f"{name}.jsonl", "")]
    golds = [extract_answer(str(row[label_key])) or str(row[label_key]) for row in rows]
    boxed, stated = [rf"\boxed{{{gold}}}" for gold in golds], [f"Thus:\n**Answer:** {gold}" for gold in golds]
    for responses in [boxed, stated] + ([[row[solution_key] for row in rows]] if solution_key else []):
        assert all(comparison.decided(gold, extract_answer(text)) for gold, text in zip(golds, responses))
    values = [number(cleaned(gold.removeprefix("x="))) for gold in golds]
    pairs = [(a, b) for a, b, x, y in zip(golds, golds[1:], values, values[1:]) if x != y]
    assert not any(comparison.decided(gold, other) for gold, other in pairs)

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.answers import decided
from openrlhf_sagc.grading.comparison import equal


@given(st.lists(st.integers(0, 3), min_size=2, max_size=5), st.lists(st.integers(0, 3), min_size=2, max_size=5))
def test_lists_are_equal_with_their_counts_in_any_order(a, b):
    assert decided(", ".join(map(str, a)), ", ".join(map(str, b))) is (sorted(a) == sorted(b))


@given(st.lists(st.integers(0, 3), min_size=2, max_size=5), st.lists(st.integers(0, 3), min_size=2, max_size=5))
def test_tuples_are_equal_in_their_order(a, b):
    assert decided(f"({','.join(map(str, a))})", rf"\langle {', '.join(map(str, b))}\rangle") is (a == b)


@pytest.mark.parametrize("names", itertools.permutations("xyz"))
def test_a_system_is_a_tuple_of_its_names_in_order(names):
    values = {"x": 4, "y": 9, "z": -1}
    system = ",".join(f"{name}={values[name]}" for name in names)
    assert decided(system, "(4,9,-1)") is True and decided("(4,9,-1)", system) is True
    assert decided(system, "(9,4,-1)") is False


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"1\text{ hour }30\text{ minutes}", r"1.5\text{ hours}", True),
        (r"1\text{ hour }30\text{ minutes}", "90", False),  # of what?
        (r"6\text{ girls, }8\text{ boys}", r"6\text{ boys, }8\text{ girls}", False),
        (r"5\text{ cm}", r"5\text{ m}", False),
        (r"500\text{ cm}", r"5\text{ m}", True),
        (r"5\text{ kg}", r"5\text{ m}", True),  # units of different kinds are not compared
        ("12", r"\ge 12", False),
        ("12", "= 12", True),
        ("x+y=7", "7", False),
        ("7", "x+y=7", True),
        ("5", "2x=5", False),
        ("5", "x=5=4", False),
        ("5", r"\text{not}=5", False),
        ("7:15 PM", "7:15 AM", False),
        ("16:40", "4:40 PM", True),
        ("BD", "D, B", True),
        ("14", "(B) 14", True),
        ("14", "(B) 15", False),
        (r"\frac{1}{3}", "0.333333", True),
    ],
)
def test_nothing_of_an_answer_is_left_out(gold, answer, right):
    assert equal(gold, answer) is right

import pytest

from openrlhf_sagc.grading.answers import decided


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        (r"(1,4)\cup(6,\infty)", r"1<x<4 \text{ or } x>6", True),
        (r"(1,4)\cup(6,\infty)", r"1<x\le4 \text{ or } x>6", False),
        (r"(-\infty,2)\cup(5,\infty)", r"(-\infty,2),(5,\infty)", True),
        (r"(1,3)\cup(2,5)", "(1,5)", True),
        (r"(1,3)\cup(3,5)", "(1,5)", False),
        (r"(1,3]\cup(3,5)", "(1,5)", True),
        ("1<x<3", r"x>1 \text{ or } x<3", False),
        ("(1,3)", "x>1, x<3", False),  # both or one of them: not said
        (r"\mathbb{R}\setminus\{1\}", r"x\ne 1", True),
        (r"\{x|-1\le x<7\}", "[-1,7)", True),
        (r"\{x|x\ge 4\}", "4", False),
        ("(1,2),(3,4)", r"(1,2)\cup(3,4)", False),  # points
    ],
)
def test_sets_of_numbers_are_compared_as_intervals(gold, answer, right):
    assert decided(gold, answer) is right

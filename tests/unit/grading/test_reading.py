import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.reading import Node, plain, read, split_at

KINDS = r"""
7, 350 ~ ,   \begin{cases}x=1\\y=2\end{cases} ~ ()   x=1,x=2 ~ ,   x=1\text{ or }y=2 ~ or   1\text{ or }2 ~ or   3\text{ cats and }2\text{ dogs} ~ and   1:2 ~ words
3\text{ hours }20\text{ minutes} ~ +   1\pm\sqrt2 ~ ±   \{1,2\} ~ {}   [0,1) ~ set   [0,1[ ~ set   ]0,1] ~ set   x=5 ~ relation
\langle 1,2\rangle ~ ()   \begin{pmatrix}1\\2\end{pmatrix} ~ ()   \begin{pmatrix}1&2\\3&4\end{pmatrix} ~ matrix
\{x|x\ge 4\} ~ set   \{x:x\ge 4\} ~ set   (0,1)\cup(2,3) ~ set   \{2n|n>4\} ~ words   \ge 12 ~ relation   (B) 14 ~ option
BD ~ and   DB ~ value   \{5\} ~ value   5⟦k⟧ ~ value   12\text{ or more} ~ words   7\text{ and a quarter} ~ words
7:15 PM ~ words   2024-05-01 ~ words   \text{The answer is not }31 ~ words   5\text{ kk} ~ words   5\text{ cm}x ~ words
"""


@pytest.mark.parametrize("case", re.split("   |\n", KINDS.strip()))
def test_an_answer_is_read_as_what_it_is(case):
    answer, kind = case.split(" ~ ")
    assert read(answer).kind == kind


def test_an_answer_is_read_wholly():
    seventeen, five, feet, inches = (
        Node("value", "17"),
        Node("value", "5", "$"),
        Node("value", "3", "ft"),
        Node("value", "2", "in"),
    )
    for said in (
        "The answer is $17$. I hope it is correct.",
        r"\text{Thus, the smallest }k\text{ is }17",
        "Answer: 17",
    ):
        assert read(said) == seventeen
    assert read(r"\$5") == read(r"5\text{ dollars}") == five and read(r"-\$5") == Node("value", "-5", "$")
    assert read(r"5\text{ million dollars}") == Node("value", r"(5)\cdot 1000000", "$")
    assert read(r"3\text{ ft }2\text{ in}") == Node("+", items=(feet, inches))
    assert read("(B) 17") == Node("option", "B", items=(seventeen,))
    assert read(r"\emptyset") == read(r"\text{There are no solutions.}")
    assert read(">1<1").kind == "relation" and read("x>2") == read("2<x") and read("5=x") == read("x=5")
    assert read("(" * 400 + "1,2" + ")" * 400) != read("(1,2)")


def test_parts_of_texts():
    parts = ["(1,2)", r"\{3,4\}", "[5,6)", r"\frac{a,b}{c}"]
    assert split_at(",".join(parts), frozenset(",")) == (parts, [","] * 3)
    assert plain("⟦An Ellipse⟧") == plain("⟦ellipse⟧") != plain("⟦ell.ipse⟧")
    assert plain("7:15⟦P.M.⟧") == plain("7:15 ⟦pm⟧")


@given(st.text(alphabet=r"\{}()[],;=<>|&123xy⟦ab⟧ .:%^", max_size=80))
def test_any_text_is_read(text):
    assert read(text).kind

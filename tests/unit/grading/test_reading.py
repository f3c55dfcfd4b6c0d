import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading.nodes import Clock, Many, Option, Relation, Union, Value, Words
from openrlhf_sagc.grading.reading import read


@pytest.mark.parametrize(
    ("answer", "kind", "joint"),
    [
        ("7, 350", Many, ","),
        (r"\{1,2\}", Many, "{}"),
        (r"\{5\}", Value, None),
        ("[0,1)", Many, "[)"),
        (r"\langle 1,2\rangle", Many, "<>"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", Many, "column"),
        (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", Value, None),  # which equals only itself
        (r"\{x|x\ge 4\}", Union, None),
        (r"\{x:x\ge 4\}", Union, None),
        (r"(0,1)\cup(2,3)", Union, None),
        (r"\ge 12", Relation, None),
        (r"12\text{ or more}", Words, None),
        (r"7\text{ and a quarter}", Words, None),
        (r"3\text{ cats and }2\text{ dogs}", Many, "and"),
        (r"3\text{ hours }20\text{ minutes}", Many, ""),
        (r"1\pm\sqrt2", Many, "±"),
        ("7:15 PM", Clock, None),
        ("1:2", Value, None),
        ("(B) 14", Option, None),
        ("BD", Option, None),
        (r"\text{no solutions}", Words, None),
        (r"\text{The answer is }31", Value, None),
        (r"\text{The answer is not }31", Words, None),
        (r"7\text{ lakh}", Value, None),
        ("", Words, None),
    ],
)
def test_an_answer_is_read_as_what_it_is(answer, kind, joint):
    node = read(answer)
    assert isinstance(node, kind) and getattr(node, "joint", None) == joint


def test_what_is_said_in_front_is_left_out():
    for answer in (
        "The answer is $17$. I hope it is correct.",
        r"\text{Thus, the smallest }k\text{ is }17",
        "Answer: 17",
    ):
        assert read(answer) == Value("17")


def test_deep_brackets_are_words():
    assert read("(" * 400 + "1,2" + ")" * 400) != read("(1,2)")


@given(st.text(alphabet=r"\{}()[],;=<>|&123xy⟦ab⟧ .:%", max_size=80))
def test_any_text_is_read(text):
    read(text)

import pytest

from openrlhf_sagc.grading.parts import by_name, contents, option_letters
from openrlhf_sagc.grading.reading import read


@pytest.mark.parametrize(("text", "letters"), [("B", "B"), ("BD", "BD"), ("D, B", "BD"), ("5", ""), ("x=1", "")])
def test_letters_of_options(text, letters):
    assert option_letters(read(text)) == letters


def test_what_options_say():
    assert list(contents(read("(B) 14"))) == ["B"] and contents(read("B")) == {}


def test_values_are_in_the_order_of_their_names():
    assert by_name(read("y=2, x=1")) == by_name(read("x=1, y=2")) is not None
    assert by_name(read("x=1, x=2")) is None and by_name(read("1, 2")) is None

import pytest

from openrlhf_sagc.grading.nodes import Relation, Value, Words, flipped, is_name, is_named, plain


@pytest.mark.parametrize(
    "text", ["x", "x_1", "a_{10}", "f(x)", "f'(x)", "AB", "|AB|", r"\theta", r"\angle ABC", r"\bar{x}"]
)
def test_names(text):
    assert is_name(text)


@pytest.mark.parametrize(
    "text", ["2x", "x+1", "x^2", r"\not", r"\neg x", r"\log x", "-x", r"\sin A", "5", "y'", r"\sqrt{x}", ""]
)
def test_no_names(text):
    assert not is_name(text)


def test_a_label_names_unless_it_denies():
    five = Value("5")
    assert is_named(Relation((Words("⟦total cost⟧"), five), ("=",)))
    assert not is_named(Relation((Words("⟦not⟧"), five), ("=",)))


def test_a_relation_can_be_read_from_behind():
    assert flipped(Relation((Value("x"), Value("5")), (r"\le",))) == Relation((Value("5"), Value("x")), (r"\ge",))


def test_articles_and_case_of_words_do_not_count():
    assert plain("⟦An Ellipse⟧") == plain("⟦ellipse⟧") != plain("⟦circle⟧")

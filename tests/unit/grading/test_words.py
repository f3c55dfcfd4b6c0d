from fractions import Fraction

import pytest

from openrlhf_sagc.grading.words import unit


@pytest.mark.parametrize(
    ("text", "kinds", "size"),
    [
        ("km", (("length", 1),), 1000),
        ("km/h", (("length", 1), ("time", -1)), Fraction(5, 18)),
        ("meters per second", (("length", 1), ("time", -1)), 1),
        ("square feet", (("length", 2),), Fraction(3048, 10000) ** 2),
        ("cm^2", (("length", 2),), Fraction(1, 10000)),
        ("red apples", (("apple", 1), ("red", 1)), 1),
        ("more hours", (("time", 1),), 3600),
        ("minutes left", (("time", 1),), 60),
        ("米", (("length", 1),), 1),
        ("руб.", (("руб", 1),), 1),
    ],
)
def test_units_have_a_kind_and_a_size(text, kinds, size):
    found = unit(text)
    assert (found.kinds, found.size) == (kinds, size)


@pytest.mark.parametrize(
    "text",
    "k M B i e x more less of times-three half halves quarter quarters third dozen pair pairs score million lakh squared cubed root "
    "not or not-apples and-a-half below-zero minus square cube factorial per /".split(),
)
def test_what_makes_another_number_is_no_unit(text):
    assert unit(text.replace("-", " ")) is None

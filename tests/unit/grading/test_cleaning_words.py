import pytest

from openrlhf_sagc.grading.cleaning import is_word, unit

NAMES = """km|kilometers|千米|公里;km/h|km per hour|kilometers/hr|km每小时;square feet|sq ft|ft^2|sq. ft.;%|percent|per cent;cherries|cherry;
m/s|meters per second|米每秒;red apples|apples red;hours|more hours|hours left|of hours;$|dollars|usd|美元"""


@pytest.mark.parametrize("names", NAMES.replace("\n", "").split(";"))
def test_names_of_one_unit(names):
    first, *others = names.split("|")
    assert unit(first) and {unit(name) for name in others} == {unit(first)}


@pytest.mark.parametrize(
    "text",
    "k|M|B|i|e|x|more|less|of|times three|half|halves|quarter|third|dozen|pairs|score|million|lakh|squared|cubed|"
    "not|not apples|and a half|below zero|minus|factorial|per|/|m^x".split("|"),
)
def test_what_makes_another_number_is_no_unit(text):
    assert unit(text) is None


def test_words_and_units_that_are_not_the_same():
    assert all(map(is_word, ["hours", "cm", "is", "III", "Sam", "час", "KM"]))
    assert not any(map(is_word, ["x", "xy", "ABC", "abc", "w"]))
    units = "mW|MW|m|m^2|m^3|m/s|s/m|cm|°C|°F|°|red apples|blue apples|apples".split("|")
    assert len(set(map(unit, units)) - {None}) == len(units)

"""Cells of tables."""

import numpy as np
from lib.run_report.content import number, table, with_interval


def test_numbers_and_what_is_none():
    assert number(1234.5, 1) == "1,234.5" and number(None) == number(np.nan) == number(np.inf) == "–"
    assert with_interval({"value": 2.0, "low": 1.0, "high": None}, 1) == "2.0 [1.0, –]"
    assert with_interval({"value": 2.0, "low": None, "high": None}) == "2.00"


def test_rows_of_the_same_keys_are_a_table():
    found = table([{"arm": "off", "s": "1"}, {"arm": "ours", "s": "2"}])
    assert found.titles == ["arm", "s"] and found.rows == [["off", "1"], ["ours", "2"]] and found.alignment == "lr"

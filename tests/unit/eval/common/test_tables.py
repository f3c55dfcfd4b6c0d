"""Tables as Markdown."""

import pandas as pd
from common.tables import markdown, rounded


def test_a_table_has_a_rule_and_a_line_for_each_row():
    assert markdown(["a", "b"], [[1, "x"], [2, "y"]], "r") == "| a | b |\n| ---: | --- |\n| 1 | x |\n| 2 | y |\n"


def test_numbers_have_the_digits_of_their_column_and_missing_ones_a_dash():
    frame = pd.DataFrame({"name": ["a", "b"], "count": [3, 4], "share": [0.123, None], "seconds": [1.26, 2.0]})
    assert rounded(frame[["name", "share", "seconds"]], {"share": 2}, 1) == [["a", "0.12", "1.3"], ["b", "–", "2.0"]]
    assert [row[0] for row in rounded(frame[["count"]].astype(object), {}, 1)] == ["3", "4"]

"""The comparison of placements."""

import pandas as pd
import placement
import pytest
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.floats(1, 100), min_size=1, max_size=10), st.integers(2, 5))
def test_groups_are_placed_whole_by_all_their_rollouts(expected, rollouts):
    placed = placement.balance_groups([0.0] * 3, expected, rollouts)
    assert all(len(engines) == rollouts and len(set(engines)) == 1 for _, engines in placed)
    assert [engines[0] for _, engines in placed[:3]] == list(range(3))[: len(placed)]  # the longest ones are apart


def test_the_table_has_each_placement(tmp_path, monkeypatch):
    flags = ["--gpus", "8", "--sizes", "32", "--steps", "2", "--csv", str(tmp_path / "new" / "seconds.csv")]
    monkeypatch.setattr("sys.argv", ["placement.py", *flags])
    placement.main()
    table = pd.read_csv(tmp_path / "new" / "seconds.csv")
    assert table["setting"].tolist() == list(placement.SETTINGS)
    assert (table[list(placement.PLACEMENTS)] > 0).all(axis=None)
    plain = table.iloc[0]
    assert plain["times as fast"] == pytest.approx(plain["OpenRLHF's"] / plain["rollouts by length"], rel=1e-3)
    assert plain["rollouts by length"] < plain["groups by length"]

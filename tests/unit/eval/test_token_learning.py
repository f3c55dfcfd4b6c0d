"""The table of what three arms log."""

import pandas as pd
import pytest
import token_learning as learning


def test_steps_that_all_runs_have_are_compared_and_paired(monkeypatch, tmp_path):
    def read(folder):
        arm, seed = folder.parts[-3], int(folder.parts[-5].removeprefix("seed-"))
        steps = 4 if arm == "weighed" else 3
        values = {tag: [seed + 2.0 * (arm == "weighed")] * 3 + [100.0] * (steps - 3) for tag in learning.LOGGED}
        if arm == "weighed":
            for tenth in learning.TENTHS:
                values |= {f"{tenth}_update": [0.0, 0.0, 0.0, 0.3], f"{tenth}_tokens": [1.0, 1.0, 1.0, 0.2]}
        return pd.DataFrame(values)

    monkeypatch.setattr(learning, "read_run", read)
    table = pd.DataFrame(learning.rows(tmp_path, ["plain", "weighed"], [0, 1, 2])).set_index(["quantity", "arm"])
    assert table.loc[("clip share", "plain"), "mean"] == 1 and table.loc[("clip share", "weighed"), "mean"] == 3
    assert table.loc[("clip share", "weighed"), "difference"] == 2
    assert table.loc[("clip share", "weighed"), "half of its interval"] == 0
    assert table.loc[("weight of the longest tenth", "weighed"), "mean"] == pytest.approx(1.5)
    assert ("weight of the longest tenth", "plain") not in table.index

"""The plot of simulated policies."""

import lib.simulation.report
import pandas as pd
import pytest


@pytest.mark.parametrize("gpus", [[1], [1, 4]])
def test_policies_are_told_apart_in_the_plot(gpus, tmp_path, monkeypatch):
    kinds = [kind + more for kind in ("fixed:8", "sagc") for more in ("", "+tail", "+lengths", "+tail+lengths")]
    rows = [
        {"gpus": n, "policy": f"{kind}@samples", **dict.fromkeys(lib.simulation.report.PANELS, 1)}
        for n in gpus
        for kind in kinds
    ]
    monkeypatch.setattr(lib.simulation.report.plt, "close", lambda figure: None)
    lib.simulation.report.plot(pd.DataFrame(rows), 0.2, tmp_path / "plot.png")
    lines = [line for line in lib.simulation.report.plt.gcf().axes[0].get_lines() if line.get_label() in kinds]
    monkeypatch.undo()
    lib.simulation.report.plt.close("all")
    points = {(str(line.get_color()), line.get_marker(), line.get_fillstyle()) for line in lines}
    strokes = {(str(line.get_color()), line.get_linestyle()) for line in lines}
    assert len(points) == len(strokes) == len(kinds)

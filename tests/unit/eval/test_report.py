"""The plot of a step's seconds."""

from unittest import mock

import pandas as pd
import pytest
import report
from lib.plots import PARTS

from openrlhf_sagc.driver.step_seconds import IDLE_TAIL, OTHER, step_seconds


def run_of(*seconds):
    """A run with steps of these seconds, in equal parts."""
    parts = {f"step_seconds/{name}": [step / len(PARTS) for step in seconds] for name in PARTS}
    return pd.DataFrame(parts, index=range(3, 3 + len(seconds)))


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """drawn(run) -> the axis of the plot."""

    def draw(run):
        with mock.patch.object(report.plt, "close"):
            assert report.plot_seconds(run, tmp_path / "seconds.png").stat().st_size > 5_000
        axis = report.plt.gca()
        report.plt.close()
        return axis

    return draw


def test_it_draws_every_part_that_the_log_has():
    scalars = dict.fromkeys(["step_total", "generation", "make_experience", "ppo_train", "broadcast"], 1.0)
    logged = {f"timing/{name}": value for name, value in scalars.items()} | {OTHER: 0.0, IDLE_TAIL: 0.0}
    assert list(step_seconds(logged)) == [f"step_seconds/{name}" for name in PARTS]


def test_the_parts_of_a_step_are_stacked(drawn):
    axis = drawn(run_of(3.0, 2.0, 4.0))
    assert [part.get_label() for part in axis.collections] == [name.replace("_", " ") for name in PARTS]
    for part, height in ((axis.collections[0], 1 / 7), (axis.collections[-1], 1.0)):
        (path,) = part.get_paths()
        tops = [max(y for x, y in path.vertices if low < x + 1e-9 and x - 1e-9 < low + 1) for low in (2.5, 3.5, 4.5)]
        # Neighbours share an edge, where the higher one is seen.
        assert tops == pytest.approx([3.0 * height, 4.0 * height, 4.0 * height])
    assert axis.get_ylim()[1] > 4.0 and axis.get_xlim() == (2.5, 5.5)


def test_a_long_run_has_as_many_shapes_as_a_short_one(drawn):
    """A bar for each step took minutes for 100,000 of them."""
    counts = [len(drawn(run_of(*[2.0] * steps)).get_children()) for steps in (3, 3000)]
    assert counts[0] == counts[1]


def test_a_first_step_that_warms_up_is_cut_and_named(drawn):
    axis = drawn(run_of(60.0, 2.0, 4.0))
    assert axis.get_ylim()[1] == pytest.approx(4.4)
    assert [text.get_text() for text in axis.texts] == ["step 3: 60 s"]


def test_a_run_of_one_step_is_drawn_whole(drawn):
    axis = drawn(run_of(60.0))
    assert axis.get_ylim()[1] > 60 and not axis.texts

"""The report's pictures."""

from unittest import mock

import numpy as np
import pytest
from lib.plots import PARTS
from lib.run_report import plots
from report_runs import arm_of, noisy, run_of

from openrlhf_sagc.driver.step_seconds import IDLE_TAIL, OTHER, REWARD_WAIT, step_seconds


@pytest.fixture
def drawn(monkeypatch):
    """drawn(*seconds) -> the axis of the plot of a run with steps of these seconds, in equal parts."""

    def draw(*seconds):
        parts = {f"step_seconds__{name}": np.array(seconds) / len(PARTS) for name in PARTS}
        with mock.patch.object(plots.plt, "close"):
            assert len(plots.stacked(arm_of("a", run_of(seconds, **parts)).runs[0]).svg) > 5_000
        axis = plots.plt.gca()
        plots.plt.close()
        return axis

    return draw


def test_it_draws_every_part_that_the_log_has():
    scalars = dict.fromkeys(["step_total", "generation", "make_experience", "ppo_train", "broadcast"], 1.0)
    logged = {f"timing/{name}": value for name, value in scalars.items()} | {
        OTHER: 0.0,
        IDLE_TAIL: 0.0,
        REWARD_WAIT: 0.0,
    }
    assert list(step_seconds(logged)) == [f"step_seconds/{name}" for name in PARTS]


def test_the_parts_of_a_step_are_stacked(drawn):
    axis = drawn(3.0, 2.0, 4.0)
    assert [part.get_label() for part in axis.collections] == [name.replace("_", " ") for name in PARTS]
    for part, height in ((axis.collections[0], 1 / len(PARTS)), (axis.collections[-1], 1.0)):
        (path,) = part.get_paths()
        tops = [max(y for x, y in path.vertices if low < x + 1e-9 and x - 1e-9 < low + 1) for low in (0.5, 1.5, 2.5)]
        # Neighbours share an edge, where the higher one is seen.
        assert tops == pytest.approx([3.0 * height, 4.0 * height, 4.0 * height])
    assert axis.get_ylim()[1] > 4.0 and axis.get_xlim() == (0.5, 3.5)


def test_a_long_run_has_as_many_shapes_as_a_short_one(drawn):
    """A bar for each step took minutes for 100,000 of them."""
    counts = [len(drawn(*[2.0] * steps).get_children()) for steps in (3, 3000)]
    assert counts[0] == counts[1] and len(plots.thinned(np.arange(100_000))) == plots.MOST_POINTS


def test_a_first_step_that_warms_up_is_cut_and_named(drawn):
    axis = drawn(60.0, 2.0, 4.0)
    assert axis.get_ylim()[1] == pytest.approx(4.4)
    assert [text.get_text() for text in axis.texts] == ["step 1: 60 s"]


def test_a_run_of_one_step_is_drawn_whole(drawn):
    axis = drawn(60.0)
    assert axis.get_ylim()[1] > 60 and not axis.texts


def test_only_what_is_logged_is_drawn():
    bare = run_of([4.0] * 3)
    bare = bare._replace(steps=bare.steps[["first", "wall_time"]])
    assert plots.figures([arm_of("off", bare)]) == []
    ours = run_of(noisy(4.0), sagc__virtual_queue=0.5, sagc__group_size=8.0, sagc__straggler_rate=0.2, reward=0.5)
    names = [figure.name for figure in plots.figures([arm_of("ours", ours), arm_of("off", run_of(noisy(4.0)))])]
    assert names == ["parts", "steps", "rewards", "control"]

"""What a trace has to have, and what is said of it."""

from argparse import Namespace

import pytest
from lib.advice.data import LEAST_PROMPTS, can_filter, doubts, read
from lib.simulation.lengths import Marks, Trace
from made_traces import write_trace


def arguments(path, **changes):
    usual = {"trace": path, "n_samples_per_prompt": 8, "batch_size": 16, "group_sizes": [4, 8, 16], "hold": "samples"}
    usual["max_gen_batches"] = 10
    return Namespace(**usual | changes)


def test_too_few_prompts_or_rollouts_are_refused(tmp_path):
    small = write_trace(tmp_path / "small.csv", prompts=LEAST_PROMPTS - 1, samples=8)
    with pytest.raises(
        ValueError, match=f"small.csv has {LEAST_PROMPTS - 1} prompts: too few .*, {LEAST_PROMPTS} or more"
    ):
        read(arguments(small))
    thin = write_trace(tmp_path / "thin.csv", prompts=LEAST_PROMPTS, samples=4)
    with pytest.raises(
        ValueError, match="has 8 rollouts of 0% of its prompts: too few .* 80% of the prompts would do"
    ):
        read(arguments(thin))
    trace, sizes = read(arguments(thin, n_samples_per_prompt=4))
    assert len(trace.samples_per_prompt) == LEAST_PROMPTS and sizes == [4] and trace.marks == Marks(None, 0.0, None)


def run_of(path, rows):
    """The trace of a run: (tokens, truncated, step, stopped)."""
    lines = [f"p,{i},{tokens},{cut},{step},{stopped}" for i, (tokens, cut, step, stopped) in enumerate(rows)]
    path.write_text("prompt_id,sample_id,tokens,truncated,step,stopped\n" + "\n".join(lines))
    return path


def test_the_marks_of_a_runs_own_trace(tmp_path):
    rows = [(100, 0, 1, 0), (100, 0, 2, 0), (900, "", 2, 1), (150, 1, 3, 0), (200, 0, 4, 0)]
    assert Trace(run_of(tmp_path / "t.csv", rows)).marks == Marks(0.25, pytest.approx(0.2), pytest.approx(1.75))
    assert Trace(run_of(tmp_path / "t.csv", [(100, 0, 1, 0)] * 3)).marks.drift is None  # one step


def test_what_is_missing_is_said(tmp_path):
    trace = Trace(write_trace(tmp_path / "t.csv", prompts=5, samples=8))
    trace.marks = Marks(0.02, 0.1, 1.5)
    lines = doubts(trace, [4, 8], arguments(None))
    assert lines[0] == (
        "group sizes 16 are not tried: the trace has 8 rollouts of most prompts, or they do not divide a step"
    )
    assert lines[1].startswith("10% of the rollouts were stopped or failed")
    assert lines[2].startswith("2.0% of the rollouts were cut off")
    assert lines[3].startswith("median lengths were 1.5 times as long in the run's last third")
    assert can_filter(trace, arguments(None)) and not can_filter(trace, arguments(None, max_gen_batches=2))
    right = Trace(write_trace(tmp_path / "right.csv", prompts=5, samples=8, success=0.999))
    assert not can_filter(right, arguments(None))
    (line,) = doubts(right, [4, 8, 16], arguments(None))
    assert line.startswith(
        "dynamic sampling is not tried: 0% of the groups have a signal, too few for --max_gen_batches 10"
    )
    unknown = Trace(write_trace(tmp_path / "unknown.csv", prompts=5, samples=8, success=None))
    assert not can_filter(unknown, arguments(None)) and not doubts(unknown, [4, 8, 16], arguments(None))
    trace.marks = Marks(0.0, 0.0, 1.1)
    assert not doubts(trace, [4, 8, 16], arguments(None))

"""The screen is one screen, and the plot is a file."""

from argparse import Namespace

import numpy as np
import pandas as pd
from lib.advice.calibration import Calibration
from lib.advice.screen import WIDTH, describe_tail, describe_trace, in_order, plot, print_screen
from lib.advice.tail import StepTail
from lib.advice.verdict import Verdict
from lib.simulation.lengths import Trace
from made_traces import write_trace

PARTS = {f"{part}_seconds": 1.0 for part in ("generation", "experience", "train", "sync")}


def made_rows(gains):
    rows = [{"switch": "as it is", "gain": 0.0, "low": 0.0, "high": 0.0}]
    rows += [{"switch": f"switch {gain}", "gain": gain, "low": gain - 0.1, "high": gain + 0.1} for gain in gains]
    shared = {"seconds": 4.0, "straggler_rate": 0.25, "effective_samples_an_hour": 7200.0, **PARTS}
    return pd.DataFrame([row | shared for row in rows])


def test_the_screen_has_every_switch_by_its_gain_and_the_flags_in_one_line(capsys):
    rows = made_rows([-0.25, 0.5, np.nan])
    flags = "--rollout.tail_batching.enable " * 8
    print_screen(["word " * 60], rows, Verdict("switch 0.5", flags, "It gains"), Calibration(True, 0.1, "calibrated"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[4:9]] == [
        "switch", "as it is", "switch 0.5", "switch -0.25", "switch nan",
    ]  # fmt: skip
    assert lines[6].split()[2:] == ["4", "0.25", "2", "+50", "%", "[+40,", "+60]"]
    assert "cannot fill its steps" in lines[8]
    assert lines[10] == "Advice: switch 0.5. It gains." and lines[11].strip() == flags.strip()
    assert all(len(line) <= WIDTH for line in lines if "--" not in line) and len(lines) < 30
    assert in_order(rows)["switch"].iloc[0] == "as it is"


def test_the_shares_of_the_tail_add_up(tmp_path):
    arguments = Namespace(n_samples_per_prompt=8, straggler_ratio=2.5)
    first, second = describe_tail(StepTail(900, 100, 0.7, 0.2), (0.85, 0.8, 0.9), (0.7, 0.6, 0.8), arguments)
    assert "900 tokens, 9.0 times the mean" in first
    assert (
        "70 % [60, 80] lies between prompts, 30 % [20, 40] within" in first and "85 % [80, 90] lies between" in first
    )
    assert second.startswith("20% of the groups of 8 have a straggler")
    trace = Trace(write_trace(tmp_path / "t.csv", prompts=5, samples=4))
    assert describe_trace(tmp_path / "t.csv", trace).startswith("t.csv: 5 prompts with 4 rollouts, 20 in all, ")


def test_the_plot_is_drawn(tmp_path):
    trace = Trace(write_trace(tmp_path / "t.csv", prompts=5, samples=4))
    plot(made_rows([0.5, -0.25, np.nan]), trace, Verdict("switch 0.5", "", ""), 0.1, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000

"""The comparison of the controller's objectives with fixed sizes."""

import sys

import objectives
import pandas as pd
import pytest
from simulation.workloads import Workload


def rows_of(figures):
    """Runs of one cell: {(policy, limit): (effective samples a second, straggler rate)}."""
    cell = {"gpus": 2, "workload": "mid", "filter": False, "hold": "samples", "tail": False, "seed": 0}
    columns = ("effective_per_second", "straggler_rate")
    return pd.DataFrame(
        [{**cell, "policy": p, "limit": limit, **dict(zip(columns, f))} for (p, limit), f in figures.items()]
    )


FIGURES = {("fixed:4", 0.95): (8, 0.1), ("fixed:8", 0.95): (9, 0.18), ("fixed:16", 0.95): (12, 0.3)}
FIGURES |= {("fixed:32", 0.95): (10, 0.5), ("size", 0.95): (10, 0.5), ("size", 0.2): (9, 0.2)}
FIGURES |= {("throughput", 0.95): (12, 0.3), ("throughput", 0.2): (9.9, 0.21)}


def test_shares_are_of_the_best_size_and_under_the_limit_of_the_best_that_keeps_it():
    free, limited = objectives.shares(rows_of(FIGURES)).to_dict("records")
    assert (free["best"], limited["best"]) == (16, 8)
    assert (free["throughput"], limited["throughput"]) == pytest.approx((1.0, 1.1))
    assert (free["fixed:8"], limited["rate of throughput"]) == pytest.approx((0.75, 0.21))
    none = objectives.shares(rows_of({key: (rate, 0.5) for key, (rate, _) in FIGURES.items()}))
    assert none["best"].tolist() == [16, 4]


def test_seeds_are_averaged_before_the_best_size_is_taken():
    other = {key: (20 if key[0] == "fixed:4" else rate, limit) for key, (rate, limit) in FIGURES.items()}
    runs = pd.concat([rows_of(FIGURES), rows_of(other)])
    assert objectives.shares(runs)["best"][0] == 4  # 14 on average


def test_every_cell_has_another_setting_and_every_workload_occurs():
    cells = objectives.cells(list(objectives.GPUS), quick=False)
    assert len(set(cells)) == len(cells) == 40
    assert {cell.workload for cell in cells} == objectives.WORKLOADS.keys()
    for gpus in objectives.GPUS:
        assert {cell.workload for cell in cells if cell.gpus == gpus} == objectives.WORKLOADS.keys()
    assert {cell.gpus for cell in objectives.cells([2, 64], quick=False)} == {2, 64}


def test_slow_engines_make_a_run_slower(monkeypatch):
    run = objectives.Run(objectives.Cell(8, "mid", False, "samples", False), "fixed:8", 0.95, 0)
    plain = objectives.measure(run, 2, 8, 2.0)
    monkeypatch.setitem(objectives.WORKLOADS, "mid", Workload(slow_share=0.5))
    slow = objectives.measure(run, 2, 8, 2.0)
    assert slow["effective_per_second"] < plain["effective_per_second"]
    assert slow["straggler_rate"] == plain["straggler_rate"] and slow["group_size"] == 8


def test_the_command_writes_runs_and_cells(monkeypatch, tmp_path, capsys):
    flags = ["--quick", "--steps", "3", "--batch_size", "8", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["objectives.py", *flags])
    objectives.main()
    runs, cells = (pd.read_csv(tmp_path / name) for name in ("runs.csv", "cells.csv"))
    assert len(runs) == 4 * (4 + 4) and len(cells) == 4 * 2
    assert runs["effective_per_second"].gt(0).all()
    printed = capsys.readouterr().out
    assert "least share" in printed
    measured = objectives.measure
    monkeypatch.setattr(objectives, "measure", None)  # all runs are kept
    objectives.main()
    assert capsys.readouterr().out == printed
    monkeypatch.setattr(objectives, "measure", measured)
    command = ["objectives", "--quick", "--steps", "4", "--batch_size", "8", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    objectives.main()  # with another number of steps
    assert len(pd.read_csv(tmp_path / "runs.csv")) == 2 * 4 * (4 + 4) and len(pd.read_csv(tmp_path / "cells.csv")) == 8

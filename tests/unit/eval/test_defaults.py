"""The evidence on the controller's defaults is about the defaults there are, and its command works."""

import argparse
import sys
from types import SimpleNamespace

import defaults
import pandas as pd
from cpu_stack import ROOT

from openrlhf_sagc.arguments import PREFIX, add_arguments


def test_the_defaults_are_those_of_the_flags():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = vars(parser.parse_args([]))
    assert defaults.DEFAULTS == {name: flags[PREFIX[2:] + name] for name in defaults.DEFAULTS}
    assert all(default in defaults.VALUES[flag] for flag, default in defaults.DEFAULTS.items())


def test_the_results_have_every_value():
    rows = pd.read_csv(ROOT / "eval/results/defaults/defaults.csv")
    assert len(rows) == 2 * 2 * sum(map(len, defaults.VALUES.values()))
    for flag, values in defaults.VALUES.items():
        assert set(rows.loc[rows["flag"] == flag, "value"]) == set(values)


def test_the_first_size_is_no_change(monkeypatch):
    sizes = iter([8, 8, 4, 4, 16])
    figures = {"straggler_rate": 0.1, "seconds": 1.0}
    run = SimpleNamespace(step=lambda: {"group_size": next(sizes), **figures})
    monkeypatch.setattr(defaults, "STEPS", {"first": 2, "all": 5})
    monkeypatch.setattr(defaults, "train", lambda *_: run)
    assert defaults.measure(defaults.SETTINGS["reasoning"], "samples", defaults.DEFAULTS, 0)["changes"] == 2 / 4


def test_a_higher_limit_gives_larger_groups(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(defaults, "STEPS", {"first": 5, "all": 40})
    monkeypatch.setattr(defaults, "VALUES", {"max_straggler_rate": (0.2, 0.6)})
    monkeypatch.setattr(sys, "argv", ["defaults.py", "--seeds", "0", "--output", str(tmp_path)])
    defaults.main()
    rows = pd.read_csv(tmp_path / "defaults.csv")
    for _, pair in rows.groupby(["lengths", "hold"]):
        assert pair["group_size"].tolist()[0] < pair["group_size"].tolist()[1]
        assert pair["straggler_rate"].tolist()[0] < pair["straggler_rate"].tolist()[1]
    assert (tmp_path / "defaults.png").stat().st_size > 10_000
    assert "countdown" in capsys.readouterr().out

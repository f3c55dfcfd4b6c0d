"""A finished run of an evaluation is used again only for what it was made with."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "eval"))

import dynamic_sampling  # noqa: E402
import group_sizes  # noqa: E402

sys.path.remove(str(ROOT / "eval"))


@pytest.fixture
def trained(monkeypatch):
    """The tasks of the training runs that were started."""
    tasks = []

    def run(command, **_):
        tasks.append(command[3].name)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return tasks


@pytest.mark.parametrize("evaluation", ["group_sizes", "dynamic_sampling"])
def test_runs_of_another_task_are_not_taken_for_done(evaluation, trained, monkeypatch, tmp_path):
    monkeypatch.setattr(group_sizes, "read_run", lambda folder: pd.DataFrame())
    for name in "ab":
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data/train.jsonl").write_text(json.dumps({"prompt": "p", "label": "1"}) + "\n")
    for name in "aabb":
        if evaluation == "group_sizes":
            group_sizes.run(tmp_path / name, tmp_path / "out", ["--flag"])
        else:
            dynamic_sampling.run(tmp_path / name, tmp_path / "out", "real", "patched", 1)
    assert trained == ["a", "b"]

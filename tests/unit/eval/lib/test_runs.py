"""A finished run of an evaluation is used again only for what it was made with."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from lib import runs
from lib.comparison import group_size_runs
from lib.turns import opened_log
from studies.dynamic_sampling import run as dynamic_sampling


@pytest.fixture
def trained(monkeypatch):
    """The tasks of the training runs that were started."""
    tasks = []

    def run(command, **_):
        tasks.append(Path(command[3]).name)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return tasks


@pytest.mark.parametrize("evaluation", ["group_sizes", "dynamic_sampling"])
def test_runs_of_another_task_are_not_taken_for_done(evaluation, trained, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(group_size_runs, "read_run", lambda folder: pd.DataFrame())
    for name in "ab":
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data/train.jsonl").write_text(json.dumps({"prompt": "p", "label": "1"}) + "\n")
    for name in "aabb":
        if evaluation == "group_sizes":
            group_size_runs.run(tmp_path / name, tmp_path / "out", ["--flag"])
        else:
            dynamic_sampling.run(tmp_path / name, tmp_path / "out", "real", "patched")
    assert trained == ["a", "b"]
    assert (
        capsys.readouterr().err == f"{tmp_path / 'out'} was made with another package, task or flags: it runs again\n"
    )


def test_nothing_is_touched_while_a_run_of_an_earlier_start_goes_on(tmp_path):
    runs.set_done(tmp_path, "before", 1)
    with opened_log(tmp_path / "train.log"), pytest.raises(ValueError, match="belongs to a run that has not ended"):
        runs.once(tmp_path, "now", lambda: pytest.fail("it began"))
    assert runs.once(tmp_path, "before", lambda: pytest.fail("it began")) == 1

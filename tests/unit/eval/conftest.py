"""For the tests of commands and of studies."""

import sys
from importlib import import_module

import numpy as np
import pytest


@pytest.fixture
def trace(tmp_path):
    generator = np.random.default_rng(0)
    tokens = generator.lognormal(5, 0.8, (30, 12)).astype(int)
    correct = generator.random((30, 12)) < 0.5
    lines = [f"p{i},{j},{tokens[i, j]},{correct[i, j]:d}" for i in range(30) for j in range(12)]
    path = tmp_path / "trace.csv"
    path.write_text("prompt_id,sample_id,tokens,correct\n" + "\n".join(lines))
    return path


@pytest.fixture
def study(monkeypatch, tmp_path):
    """study(name, *words) -> the folder into which the study has written, as `python eval/studies` starts it."""
    runner = import_module("studies.__main__")

    def run(name, *words):
        words = [*words, "--output", tmp_path / "out"]
        monkeypatch.setattr(sys, "argv", ["eval/studies", name, *map(str, words)])
        runner.main()
        return tmp_path / "out"

    return run


@pytest.fixture
def small(monkeypatch):
    """small(name, **values) -> the study's module with these constants."""

    def change(name, **values):
        module = import_module(f"studies.{name}")
        for constant, value in values.items():
            monkeypatch.setattr(module, constant, value)
        return module

    return change


@pytest.fixture
def task(tmp_path):
    """A warm-started task's folder, with as many prompts as the quickstart's."""
    for folder in ("model", "data"):
        (tmp_path / "task" / folder).mkdir(parents=True)
    (tmp_path / "task/data/task.txt").write_text("countdown\n")
    (tmp_path / "task/data/train.jsonl").write_text('{"input": "1 2", "label": "3"}\n' * 2168)
    return tmp_path / "task"

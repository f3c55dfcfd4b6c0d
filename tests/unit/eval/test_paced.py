"""The study of paced engines: its pace, its plan and its table."""

import sys
import time
from importlib import import_module
from types import SimpleNamespace

import pandas as pd
import pytest
from lib.paths import ENGINES
from studies.paced.arms import PLANS, SHAPES, run_of
from studies.paced.run import late_share
from studies.paced.table import table

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.flags import parse_flags


@pytest.fixture
def pace(monkeypatch):
    monkeypatch.syspath_prepend(str(ENGINES / "pace"))
    for name, value in {"PACE_BASE_MS": 20, "PACE_EACH_MS": 10, "PACE_SAMPLE_MS": 15}.items():
        monkeypatch.setenv(name, str(value))
    yield import_module("pace")
    sys.modules.pop("pace")


@pytest.fixture
def slept(pace, monkeypatch):
    """What was slept, in seconds, on a clock that stands still otherwise."""
    slept = []
    clock = SimpleNamespace(perf_counter=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(pace, "time", clock)
    return slept


def test_an_iteration_ends_where_its_tokens_are_sampled(pace, slept):
    class Worker:
        def execute_model(self, scheduled):
            slept.append(0.005)  # of work
            return scheduled.output

        def sample_tokens(self, grammar):
            return "tokens"

    pace.pace_worker(SimpleNamespace(CPUWorker=Worker))
    worker, requests = Worker(), {"a": 1, "b": 1}
    step = SimpleNamespace(total_num_scheduled_tokens=2, num_scheduled_tokens=requests, output=None)
    assert worker.execute_model(step) is None and slept == [0.005]
    assert worker.sample_tokens(None) == "tokens" and slept[1:] == [pytest.approx(0.035)]
    step.output = "output"  # of a model that samples by itself
    assert worker.execute_model(step) == "output" and slept[3:] == [pytest.approx(0.035)]
    step.total_num_scheduled_tokens = 0
    worker.execute_model(step)
    assert worker.sample_tokens(None) == "tokens" and len(slept) == 5  # nothing ran, and nothing waits


def test_what_takes_longer_than_its_pace_is_late_and_does_not_wait(pace, slept, monkeypatch, tmp_path):
    class Trainer:
        replay_buffer = SimpleNamespace(items=[0] * 4)

        def ppo_train(self, kl_ctl):
            slept.append(kl_ctl)
            return {}

    monkeypatch.setenv("PACE_LOG", str(tmp_path / "log"))
    pace.pace_training(SimpleNamespace(ActorPPOTrainer=Trainer))
    for seconds in (0.01, 0.07):
        assert Trainer().ppo_train(seconds) == {}
    assert slept == [0.01, pytest.approx(0.05), 0.07, 0.0]
    assert [line.split()[2:] for line in (tmp_path / "log").read_text().splitlines()] == [
        ["1", "0.010", "0.050", "0"],
        ["2", "0.080", "0.050", "1"],
    ]


def test_a_module_is_changed_as_it_is_imported(pace, monkeypatch, tmp_path):
    (tmp_path / "paced_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(pace.CHANGES, "paced_module", lambda module: setattr(module, "value", 2))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    pace.install()
    assert import_module("paced_module").value == 2
    sys.modules.pop("paced_module")


def test_late_iterations_are_counted_once(tmp_path):
    (tmp_path / "log").write_text("engine 7 200 1 1 9\nengine 7 400 2 2 10\ntraining 8 1 1 1 1\nengine 9 200 1 1 2\n")
    assert late_share(tmp_path / "log") == 0.02


@pytest.mark.parametrize("shape, name", [(shape, name) for shape, arms in PLANS.items() for name in arms])
def test_every_arm_has_the_samples_of_a_step_and_flags_that_the_command_takes(shape, name):
    arm, kind = PLANS[shape][name], SHAPES[shape]
    tree, words, environment = run_of(arm, kind, 0)
    flags = dict(zip(words, words[1:]))  # later ones win
    samples = int(flags["--rollout.batch_size"]) * int(flags["--rollout.n_samples_per_prompt"])
    assert samples == kind.prompts * 8 == int(flags["--train.batch_size"])
    assert int(flags["--eval.steps"]) == 20 and int(flags["--data.max_samples"]) * arm.size == kind.problems * 8
    engines, trainers = arm.split or (kind.gpus, kind.gpus)
    assert int(flags["--vllm.num_engines"]) == engines
    assert float(environment["PACE_SAMPLE_MS"]) * samples == pytest.approx(2000 * kind.gpus / trainers)
    if tree == "cpu-patched" and not arm.off:
        parse_flags(words, add_arguments)


def rows(arm, seed, seconds, reward):
    step = {"shape": "two", "arm": arm, "seed": seed, "generation": 1.0, "reward": reward, "trained_length": 50.0}
    step |= {"training": 2.0, "length_mean": 50.0, "rollouts": 10, "wasted_tokens": 0.0, "late_share": 0.01}
    return [step | {"step": number, "step_seconds": value} for number, value in enumerate(seconds, start=1)]


def test_the_table_is_paired_by_seed_and_leaves_the_first_step_out():
    """Seed 1 is slow for both arms; plain alone has seed 2."""
    slow, fast = [99, 4, 4, 4, 4, 4], [99, 2, 1, 1, 1, 1]
    steps = rows("plain", 0, slow, 0.5) + rows("plain", 1, [10 * x for x in slow], 0.7) + rows("plain", 2, slow, 0.0)
    steps += rows("auto", 0, fast, 0.6) + rows("auto", 1, [10 * x for x in fast], 0.8)
    ends = [(0, 0.0, "1 1"), (6, 30.0, "3 3")]
    keys = ["shape", "arm", "seed", "step", "seconds", "right", "samples"]
    evaluations = [
        ("two", arm, seed, step, seconds * (1 + (arm == "plain")), right, 4)
        for arm, seed in [("plain", 0), ("plain", 1), ("plain", 2), ("auto", 0), ("auto", 1)]
        for step, seconds, right in ends
    ]
    text = table(pd.DataFrame(steps), pd.DataFrame(evaluations, columns=keys))
    rows_of_text = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    auto = next(row for row in rows_of_text if row[:1] == ["auto"])
    assert auto[:3] == ["auto", "2", "6.60"]
    assert auto[6].startswith("3.33 [") and auto[7].startswith("2.00 [") and auto[8].startswith("4.00 [")
    assert auto[9].startswith("0.100 [0.100,") and auto[10] == "1.000"
    assert auto[12].startswith("2.00 [") and auto[13] == "1.0"
    assert rows_of_text[-1] == "auto 1 12.00 2.00 3.33 – 0.100 0.100 1.000 1.000 0.750".split()


def test_a_run_that_fails_ends_what_runs_beside_it(study, monkeypatch, tmp_path):
    """And the message names its log."""
    module = import_module("studies.paced.run")
    monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(module, "make_task", lambda *_: None)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    commands = iter([["bash", "-c", "sleep 60"], ["false"]])
    monkeypatch.setattr(module, "train_command", lambda *_, **__: next(commands))
    began = time.monotonic()
    with pytest.raises(SystemExit, match="^eval/studies paced: auto, seed 0: exit code 1, see .*auto/0/train.log$"):
        study("paced", "--arms", "plain", "auto", "--seeds", 0)
    assert time.monotonic() - began < 30

"""The tasks that models are warm-started on: Countdown and Route."""

import importlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
from math import log

import pytest
from cpu_stack import ROOT
from lib.comparison.tasks import task_of

SCRIPTS = ROOT / "train_scripts"


def load(name: str, folder, monkeypatch):
    """A module of a task's folder, under a name that both tasks use."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    return module


@pytest.fixture
def route(monkeypatch):
    return load("task", SCRIPTS / "route", monkeypatch)


@pytest.mark.parametrize("name", ["countdown", "route"])
def test_every_written_response_fits_the_model_and_its_words_and_is_graded(name, monkeypatch):
    task = load("task", SCRIPTS / name, monkeypatch)
    monkeypatch.setitem(sys.modules, "task", task)
    words = {*load("words", SCRIPTS / name, monkeypatch).WORDS}
    reward = load("reward", SCRIPTS / name, monkeypatch).reward_func
    train, heldout = task.split_instances(3, 50)
    assert len(heldout) == 50 and not {*train} & {*heldout}
    texts = task.written_out(heldout * 20, random.Random(0))
    assert all({*text.split()} <= words and len(text.split()) < task.CONTEXT for text in texts)
    prompts = [text[: text.index(":") + 1] for text in texts]
    found = reward([f"{text} <eos>" for text in texts], prompts, [""] * len(texts))
    assert found["rewards"].tolist() == [float(text.endswith("!")) for text in texts]
    assert 0.3 < found["rewards"].mean() < 0.7
    gave_up = found["extra_logs"]["gave_up"]
    assert gave_up.sum() > 0 and not (gave_up * found["rewards"]).any()


def test_a_written_response_is_as_before(monkeypatch):
    """The published quickstart starts from a model that was trained on these."""
    task = load("task", SCRIPTS / "countdown", monkeypatch)
    train, _ = task.split_instances(0, 256)
    rng = random.Random(0)
    drawn = rng.choices(train, k=2)
    instances = [task.shuffled(instance, rng) for instance in drawn]
    expected = [f"{instance.prompt} {task.search_trace(instance, rng)}" for instance in instances]
    rng = random.Random(0)
    assert task.written_out(rng.choices(train, k=2), rng) == expected


def test_lengths_of_route_are_those_of_a_reasoning_model(route):
    rng, means, variances, lengths = random.Random(0), [], [], []
    for _ in range(1000):
        trip = route.drawn_trip(rng)
        mine = [len(route.written_way(trip, rng).split()) + 1 for _ in range(16)]  # and the end
        means.append(statistics.mean(map(log, mine)))
        variances.append(statistics.variance(map(log, mine)))
        lengths += mine
    assert statistics.stdev(means) == pytest.approx(0.94, abs=0.03)
    assert statistics.mean(variances) ** 0.5 == pytest.approx(0.41, abs=0.03)
    assert max(lengths) > 20 * statistics.median(lengths)


@pytest.mark.parametrize(
    "response, is_solved",
    [
        ("express 2 local 1 local 0 !", True),
        ("local 6 local 5 express 0 !", True),
        ("express 2 local 1 local 0 lost", False),
        ("express 2 local 1 local 0", False),
        ("express 2 local 1 !", False),
        ("express 2 express -3 !", False),
        ("express 2 express -3 lost", False),
        ("express 2 local 0 !", False),
        ("local 2 local 1 local 0 !", False),
        ("express 2 1 0 !", False),
        ("express 2 local 1 local 0 ! !", False),
        ("local 6", False),
        ("!", False),
        ("", False),
    ],
)
def test_a_way_is_right_if_its_trains_go_to_the_end_of_the_line(route, response, is_solved):
    assert route.solved("line 12 , 7 to go :", response) is is_solved


def test_another_prompt_is_refused(route):
    with pytest.raises(ValueError, match="not a Route prompt: 'use 4 to make 3 :'"):
        route.solved("use 4 to make 3 :", "!")


@pytest.mark.parametrize("name, problems", [("countdown", 0), ("route", 6000)])
def test_a_heldout_part_that_leaves_nothing_is_refused(name, problems, monkeypatch):
    with pytest.raises(ValueError, match=f"heldout must be between 1 and .*, got {problems}"):
        load("task", SCRIPTS / name, monkeypatch).split_instances(0, problems)


@pytest.mark.parametrize("name", ["countdown", "route"])
def test_the_warm_start_of_a_task_is_a_model_that_reads_its_words(name, tmp_path, monkeypatch, python):
    task = load("task", SCRIPTS / name, monkeypatch)
    command = [python, SCRIPTS / "warm_start.py", "--task", name, "--output", tmp_path, "--steps", "1"]
    subprocess.run(
        [*command, "--batch_size", "2"], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    config = json.loads((tmp_path / "model/config.json").read_text())
    vocabulary = json.loads((tmp_path / "model/tokenizer.json").read_text())["model"]["vocab"]
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "data/train.jsonl").open()]
    assert config["max_position_embeddings"] == task.CONTEXT and config["vocab_size"] == len(vocabulary)
    assert all({*prompt.split()} <= {*vocabulary} for prompt in prompts)
    found = task_of(tmp_path)
    assert max(len(prompt.split()) for prompt in prompts) + found.max_new_tokens <= found.max_len == task.CONTEXT


def test_the_reward_of_a_comparison_is_the_tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("REWARD_TASK", "route")
    monkeypatch.setenv("REWARD_LOG", str(tmp_path / "log"))
    spec = importlib.util.spec_from_file_location("reward_of_route", ROOT / "eval/lib/synthetic_reward.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prompt = "line 12 , 7 to go :"
    queries = [f"{prompt} express 2 local 1 local 0 ! <eos>", f"{prompt} express 2 express -3 lost <eos>"]
    assert module.reward_func(queries, [prompt] * 2, ["7"] * 2)["rewards"].tolist() == [1.0, 0.0]
    assert [line.split()[1:3] for line in (tmp_path / "log").read_text().splitlines()] == [["1.0", "8"], ["0.0", "6"]]

"""All that a run reads, looked at together."""

import json
import re

import pytest

from openrlhf_sagc.config import inputs
from openrlhf_sagc.config.inputs import check_inputs

ROWS = [{"prompt": f"What is {i} + 1 ?", "label": str(i + 1)} for i in range(20)]
KEYS = ["--data.label_key", "label"]


@pytest.fixture
def look(arguments, data, refused, model):
    """look(*flags): the line with which inputs are refused, or empty."""
    fitting = ["--data.prompt_dataset", data(ROWS), "--actor.model_name_or_path", model, *KEYS]
    return lambda *flags: refused(check_inputs, arguments(*fitting, *flags))


def test_inputs_that_fit(look, arguments, data, model):
    assert not look() and not look("--data.apply_chat_template")
    flags = ["--data.prompt_dataset", f"{data(ROWS)},{data(ROWS[:5], 'b.jsonl')}", "--actor.model_name_or_path", model]
    assert check_inputs(arguments(*flags, *KEYS)) == 25


def test_the_models_folder(look, tmp_path):
    assert look("--actor.model_name_or_path", tmp_path / "none").startswith("--actor.model_name_or_path ")
    assert "none is not there (seen from " in look("--actor.model_name_or_path", tmp_path / "none")
    (tmp_path / "folder").mkdir()
    assert "folder has no config.json" in look("--actor.model_name_or_path", tmp_path / "folder")


def test_a_name_that_the_hub_does_not_have(look, arguments, monkeypatch):
    asked = []
    monkeypatch.setattr(inputs, "missing_on_hub", lambda model: asked.append(model) or "We couldn't connect")
    assert look("--actor.model_name_or_path", "a/b") == (
        "--actor.model_name_or_path a/b is no folder here, and the hub's model cannot be had: We couldn't connect: give a model's "
        "folder, or a name that the hub or its cache has"
    )
    assert not look("--reward.model_name_or_path", "a/b") and asked == [
        "a/b"
    ]  # which a run with a function does not load


@pytest.mark.parametrize(
    "cached, answers, problem",
    [
        (["config.json", "model.safetensors"], [], ""),
        (["config.json"], ["config.json"], "it has no weights"),
        ([], ["config.json", "pytorch_model.bin.index.json"], ""),
        (["model.safetensors"], [], "We couldn't connect to the hub"),
    ],
)
def test_a_model_of_the_hub(monkeypatch, cached, answers, problem):
    def cached_file(model, name):
        if name not in answers:
            raise OSError("We couldn't connect to the hub.\nCheck your internet connection.")

    monkeypatch.undo()
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda model, name: "path" if name in cached else None
    )
    monkeypatch.setattr("transformers.utils.cached_file", cached_file)
    monkeypatch.setattr("transformers.utils.hub.has_file", lambda model, name: name in answers)
    assert inputs.missing_on_hub("a/b") == problem


def test_several_reward_models(look):
    """Up to 0.6.2 OpenRLHF added the rewards of several; today it takes the list for one model's name."""
    flags = ["--reward.remote_url", "", "--reward.model_name_or_path", "a/b,c/d"]
    assert look(*flags).startswith(
        "--reward.model_name_or_path a/b,c/d names several models, and OpenRLHF 0.11.2 loads one: give a/b,"
    )


def test_a_model_without_a_tokenizer(look, model):
    for file in model.glob("tokenizer*"):
        file.unlink()
    assert re.search("tokenizer that can be loaded|its tokenizer makes no token of the prompts of", look())


@pytest.mark.parametrize(
    "rows, flags, line",
    [
        ([{"q": "a", "label": "1"}], [], "--data.input_key prompt: no such column in --eval.dataset "),
        ([*ROWS, {"prompt": "", "label": "1"}], [], "row 21: the prompt is empty"),
        ("", [], "eval.jsonl is empty"),
        ("{}\n{", [], "eval.jsonl is not JSON in line 2"),
        (ROWS, ["--eval.split", "test"], "--eval.split test: no such split in "),
    ],
)
def test_evaluation_sets_are_looked_at_likewise(look, data, rows, flags, line):
    assert line in look("--eval.dataset", data(rows, "eval.jsonl"), "--eval.steps", "5", *flags)


@pytest.mark.parametrize(
    "key, line",
    [
        ("eval_math_pass1", ""),
        ("eval_math_pass4", ""),
        ("eval_response_length_mean", ""),
        ("none", ""),
        ("", ""),
        (
            "eval_math_pass@1",
            "--ckpt.best_metric_key eval_math_pass@1: no such metric of --eval.dataset (there are eval_code_pass4",
        ),
        ("eval_default_pass1", "no such metric of --eval.dataset"),
    ],
)
def test_the_metric_of_the_best_checkpoint(look, data, key, line):
    rows = [row | {"datasource": "math" if i % 2 else "code"} for i, row in enumerate(ROWS)]
    flags = ["--eval.dataset", data(rows, "eval.jsonl"), "--eval.steps", "5", "--ckpt.best_metric_key", key]
    said = look(*flags)
    assert line in said and bool(line) == bool(said)


def test_metrics_are_those_that_openrlhf_computes(look, data):
    """A set without a column datasource is the default one."""
    from types import SimpleNamespace

    import torch
    from openrlhf.trainer.ppo_trainer import compute_eval_metrics

    sample = SimpleNamespace(
        prompts=["a"], rewards=torch.ones(1), response_length=torch.tensor([5.0]), truncated=torch.tensor([False])
    )
    metrics = compute_eval_metrics([(["default"], ["a"], ["1"], [None])], [sample] * 4, 4)
    flags = ["--eval.dataset", data(ROWS, "eval.jsonl"), "--eval.steps", "5", "--ckpt.best_metric_key"]
    assert len(metrics) == 7 and not any(look(*flags, key) for key in metrics)


def test_the_data_are_named_before_the_file(look, tmp_path, data):
    """Both are looked at at once, and one line ends the run."""
    reward = tmp_path / "slow.py"
    reward.write_text("import time\ntime.sleep(600)")
    said = look("--reward.remote_url", reward, "--data.prompt_dataset", data("", "empty.jsonl"))
    assert said.endswith("empty.jsonl is empty")


def test_images_have_no_tokenizer_of_texts(look, data):
    rows = [{"prompt": "<image> x", "label": "1", "images": ["a.png"]}]
    path = data([json.loads(json.dumps(row)) for row in rows], "images.jsonl")
    assert not look("--data.prompt_dataset", path, "--data.max_images_per_prompt", "1", "--data.apply_chat_template")


def test_sets_that_are_no_texts_name_no_metrics(look, data):
    rows = [{**row, "datasource": {"name": "a"}} for row in ROWS]
    assert look("--data.prompt_dataset", data(rows)) == ""  # nobody asks what training prompts are from
    said = look("--eval.dataset", data(rows, "eval.jsonl"), "--eval.steps", "5")
    assert "its column datasource has no texts" in said

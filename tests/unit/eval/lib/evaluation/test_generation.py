"""Responses as vLLM generates them; vLLM is replaced."""

import json
import sys
from types import SimpleNamespace

import pytest
from lib.evaluation import generation


class Tokenizer:
    """A token is a character, 0 the end token; without a chat template, as transformers has it."""

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens):
        assert not skip_special_tokens
        return "".join(chr(i) if i else "<eos>" for i in ids)

    def apply_chat_template(self, chat, **settings):
        raise ValueError("tokenizer.chat_template is not set")


class Engine:
    """Answers `1` and the end token, then `22` cut off; takes 9 tokens."""

    model_config = SimpleNamespace(max_model_len=9)

    def __init__(self, model, seed):
        assert (model, seed) == ("a", 3)
        self.calls = []

    def collective_rpc(self, method, kwargs):
        self.calls.append((method, kwargs))

    def reset_prefix_cache(self):
        self.calls.append("reset_prefix_cache")

    def get_tokenizer(self):
        return Tokenizer()

    def generate(self, prompts, sampling):
        assert sampling == [{"n": 2, "seed": 2 * (3 * len(prompts) + i)} for i in range(len(prompts))]
        answers = [SimpleNamespace(token_ids=(49, 0), finish_reason="stop")]
        answers.append(SimpleNamespace(token_ids=(50, 50), finish_reason="length"))
        return [SimpleNamespace(prompt_token_ids=x["prompt_token_ids"], outputs=answers) for x in prompts]


def test_responses_are_what_rewards_see_in_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=dict))
    monkeypatch.setattr(generation, "engine", None)
    settings = {"engine": {"seed": 3}, "sampling": {"n": 2}, "apply_chat_template": False}
    (row,) = generation.sample("a", [{"prompt_id": 5, "prompt": "p 1", "label": "1"}], settings)
    assert row["responses"] == ["1<eos>", "22"] and row["tokens"] == [2, 2] and row["truncated"] == [False, True]
    assert row["prompt"] == "p 1" and row["prompt_id"] == 5
    with pytest.raises(SystemExit, match="prompt_id 5 has 9 tokens, the model takes 1 to 8: raise --max_model_len"):
        generation.sample("a", [{"prompt_id": 5, "prompt": "123456789"}], settings)
    with pytest.raises(SystemExit, match="--apply_chat_template: a: tokenizer.chat_template is not set"):
        generation.sample("a", [{"prompt_id": 5, "prompt": "p"}], {**settings, "apply_chat_template": True})


def test_a_second_model_is_loaded_into_the_engine_of_the_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Engine, SamplingParams=dict))
    monkeypatch.setattr(generation, "engine", None)
    settings = {"engine": {"seed": 3}, "sampling": {"n": 2}, "apply_chat_template": False}
    for model in ("a", "b"):
        generation.sample(model, [{"prompt_id": 5, "prompt": "p"}], settings)
    assert generation.engine.calls == [("reload_weights", {"weights_path": "b"}), "reset_prefix_cache"]


def test_models_share_an_engine_where_nothing_but_weights_differs(tmp_path):
    def model(name, tokenizer="{}", **config):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"hidden_size": 96, **config}))
        (tmp_path / name / "tokenizer.json").write_text(tokenizer)
        return str(tmp_path / name)

    base = generation.architecture(model("base", use_cache=True))
    assert generation.architecture(model("trained", use_cache=False)) == base is not None
    assert generation.architecture(model("wider", hidden_size=97)) != base
    assert generation.architecture(model("other tokenizer", tokenizer="[]")) != base
    chat = model("other chat template")
    (tmp_path / "other chat template" / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert generation.architecture(chat) != base
    assert generation.architecture("owner/name") is None

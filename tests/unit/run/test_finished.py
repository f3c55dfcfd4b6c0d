"""Whether a model was saved to its end; tests/unit/flags/test_main.py has what comes of it."""

import json

import pytest
import torch
from safetensors.torch import save_file

from openrlhf_sagc.run.finished import is_whole


@pytest.fixture
def model(tmp_path):
    """A model in two files."""
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        save_file({name: torch.ones(5)}, tmp_path / name)
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1]}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    return tmp_path


def test_a_model_in_several_files_and_adapters_are_whole(model, tmp_path):
    assert is_whole(model)
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    assert not is_whole(adapters)
    torch.save({"a": torch.ones(2)}, adapters / "adapter_model.bin")
    assert not is_whole(adapters)
    (adapters / "tokenizer_config.json").write_text("{}")
    assert is_whole(adapters)


@pytest.mark.parametrize(
    "file, content",
    [
        ("model-00002-of-00002.safetensors", lambda content: None),
        ("model-00002-of-00002.safetensors", lambda content: content[:-1]),
        ("model-00001-of-00002.safetensors", lambda content: content[:9]),
        ("model-00001-of-00002.safetensors", lambda content: b""),
        ("model-00001-of-00002.safetensors", lambda content: b"\xff" * 100),
        ("model.safetensors.index.json", lambda content: content[:-3]),
        ("model.safetensors.index.json", lambda content: b"[]"),
        ("tokenizer_config.json", lambda content: None),
    ],
)
def test_a_model_that_was_cut_is_not_whole(model, file, content):
    if (cut := content((model / file).read_bytes())) is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(cut)
    assert not is_whole(model)

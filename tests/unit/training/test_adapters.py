import copy
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from openrlhf_sagc.training.adapters import broadcast_merged, merged_weights


@pytest.fixture
def model():
    """A Qwen2, whose attention has biases, with adapters that add something."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    base = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return model


def test_engines_get_the_names_and_weights_of_the_merged_model(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
    sent = dict(merged_weights(model))
    assert sent.keys() == expected.keys()
    for name, weight in sent.items():
        torch.testing.assert_close(weight.data, expected[name].data)
        assert (weight.shape, weight.dtype) == (expected[name].shape, expected[name].dtype)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_sync_reads_the_weights_anew_and_leaves_the_actor_as_it_was(model):
    actor = SimpleNamespace(model=SimpleNamespace(module=model))
    trainer = SimpleNamespace(actor=actor)
    syncs = []

    def broadcast():
        syncs.append({name: weight.data for name, weight in trainer.actor.model.module.named_parameters()})

    model_actor = SimpleNamespace(trainer=trainer, broadcast_to_vllm=broadcast)
    broadcast_merged(model_actor)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter *= 2
    broadcast_merged(model_actor)
    name = "model.layers.1.mlp.down_proj.weight"
    assert not torch.allclose(syncs[0][name], syncs[1][name]) and trainer.actor is actor
    assert torch.equal(syncs[0]["lm_head.weight"], syncs[1]["lm_head.weight"])


def test_the_actor_is_as_it_was_after_a_sync_that_failed(model):
    actor = SimpleNamespace(model=SimpleNamespace(module=model))
    trainer = SimpleNamespace(actor=actor)
    with pytest.raises(ZeroDivisionError):
        broadcast_merged(SimpleNamespace(trainer=trainer, broadcast_to_vllm=lambda: 1 / 0))
    assert trainer.actor is actor

"""Weights of a sync are announced in one call; tests/stack has what vLLM samples from in the end."""

import asyncio
import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

import openrlhf_sagc.training.weight_sync as weight_sync
from openrlhf_sagc.training.weight_sync import (
    AnnouncedWeights,
    announce_weights,
    broadcast_merged,
    merged_weights,
    receive_weights,
    update_weights,
)

WEIGHTS = [
    {"name": name, "dtype": "fp32", "shape": (2,), "empty_cache": last} for name, last in (("a", False), ("b", True))
]


@pytest.fixture
def engine(monkeypatch):
    """A handle that notes its calls; a reference is the number of the call."""
    monkeypatch.setattr(weight_sync.ray, "put", lambda value: "nothing")
    calls = []

    def remote(*args, **kwargs):
        calls.append(args or kwargs)
        return len(calls)

    method = SimpleNamespace(remote=remote)
    return SimpleNamespace(update_weight=method, __ray_call__=method, reset_prefix_cache=method, calls=calls)


def sync_once(announced):
    refs = []
    for weight in WEIGHTS:
        arguments = dict(weight)
        refs.append(announced.update_weight.remote(arguments.pop("name"), **arguments))
    return refs


def test_later_syncs_are_one_call_which_the_last_weight_waits_for(engine):
    announced = AnnouncedWeights(engine)
    assert sync_once(announced) == [1, 2] and engine.calls == WEIGHTS
    for call in (3, 4):
        assert sync_once(announced) == ["nothing", call]
        assert engine.calls[2:] == [(receive_weights, WEIGHTS)] * (call - 2)
    assert announced.reset_prefix_cache.remote("other methods are the engine's") == 5


def test_other_weights_than_those_announced_are_an_error(engine):
    announced = AnnouncedWeights(engine)
    sync_once(announced)
    with pytest.raises(RuntimeError, match="the policy has the weight .*'c'.* in the place of .*'a'"):
        announced.update_weight.remote("c", dtype="fp32", shape=(2,), empty_cache=False)


@pytest.mark.parametrize(
    "flags, announces",
    [({}, True), ({"zero_stage": 3}, False), ({"tensor_parallel_size": 2}, False), ({"ray": True}, False)]
    + [({"ipc": True}, False), ({"async": True}, False)],
)
def test_openrlhf_waits_for_each_weight_where_one_call_is_not_safe(engine, flags, announces):
    usual = {"zero_stage": 2, "tensor_parallel_size": 1}
    args = SimpleNamespace(
        ds=SimpleNamespace(**usual | flags),
        vllm=SimpleNamespace(sync_with_ray="ray" in flags),
        train=SimpleNamespace(async_enable="async" in flags),
    )
    trainer = SimpleNamespace(vllm_engines=[engine], use_cuda_ipc="ipc" in flags)
    model_actor = SimpleNamespace(trainer=trainer, strategy=SimpleNamespace(args=args))
    announce_weights(model_actor)
    (first,) = trainer.vllm_engines
    announce_weights(model_actor)
    assert trainer.vllm_engines == [first] and isinstance(first, AnnouncedWeights) == announces


def test_an_engine_receives_all_weights_in_order_from_another_thread():
    loop, received = asyncio.new_event_loop(), []
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    worker = SimpleNamespace(update_weight=lambda **weight: received.append(weight))

    async def collective_rpc(function, args):
        assert threading.current_thread() is thread
        function(worker, *args)

    llm = SimpleNamespace(collective_rpc=collective_rpc, output_handler=SimpleNamespace(get_loop=lambda: loop))
    try:
        receive_weights(SimpleNamespace(llm=llm), WEIGHTS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert received == WEIGHTS


def test_weights_behind_one_that_cannot_be_loaded_are_received_before_the_error():
    received = []

    def update_weight(**weight):
        received.append(weight)
        raise ValueError(f"no place for {weight['name']}")

    with pytest.raises(ValueError, match="no place for a"):
        update_weights(SimpleNamespace(update_weight=update_weight), WEIGHTS)
    assert received == WEIGHTS


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
    model_actor.broadcast_to_vllm = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        broadcast_merged(model_actor)
    assert trainer.actor is actor

"""Inside the policy's actors: a model with LoRA adapters goes to the engines as the model that it is without them.

OpenRLHF sends every parameter under its own name. With adapters these are names that no engine has.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from peft.tuners.lora import LoraLayer


def broadcast_merged(model_actor: Any) -> None:
    """Run in a policy's actor in the place of its `broadcast_to_vllm`: engines get weights with what adapters add."""
    trainer = model_actor.trainer
    actor = trainer.actor
    module = SimpleNamespace(named_parameters=lambda: merged_weights(actor.model.module))
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=module), is_vlm=getattr(actor, "is_vlm", False))
    try:
        model_actor.broadcast_to_vllm()
    finally:
        trainer.actor = actor


def merged_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """Every parameter of a PEFT model but those of its adapters, under the name that it has without them."""
    base = model.get_base_model()
    layers = {
        f"{name}.base_layer.weight": layer for name, layer in base.named_modules() if isinstance(layer, LoraLayer)
    }
    inside = tuple(f"{name.removesuffix('base_layer.weight')}lora_" for name in layers)
    for name, parameter in base.named_parameters():
        if not name.startswith(inside):
            weight = MergedWeight(layers[name]) if name in layers else parameter
            yield name.replace(".base_layer.", "."), weight


class MergedWeight:
    """The weight of a layer with what its adapters add to it, as OpenRLHF's weight sync reads a parameter.

    It is added when `data` is read, so that one such weight at a time takes memory.

    Args:
        layer: that has the adapters, whose own weights stay as they are.
    """

    requires_grad = True

    def __init__(self, layer: Any) -> None:
        self._layer, self._weight = layer, layer.get_base_layer().weight
        self.shape, self.dtype = self._weight.shape, self._weight.dtype

    @property
    def data(self) -> torch.Tensor:
        with torch.no_grad():
            added = [self._layer.get_delta_weight(adapter) for adapter in self._layer.active_adapters]
            return sum((weight.to(self.dtype) for weight in added), self._weight.detach())

"""In a policy's actor: its weights go to the engines; `receive_weights` runs in theirs, `update_weights` in workers.

OpenRLHF makes a call for every parameter, and waits for each. Here the first rank announces to every engine all weights that
it will broadcast, and broadcasts them one after the other.

OpenRLHF sends every parameter under its own name. With LoRA adapters these are names that no engine has, so that the model
goes to the engines as the one that it is without them.
"""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ray
import torch
from peft.tuners.lora import LoraLayer
from ray import ObjectRef


def announce_weights(model_actor) -> None:
    """Run in a policy's actor: after the next sync, one call tells an engine all weights. A second call does nothing.

    Gathered parameters may be freed before their broadcast ends, so that OpenRLHF goes on waiting for each. So it does in an
    asynchronous run, whose rollouts would stop for the whole sync.
    """
    trainer, args = model_actor.trainer, model_actor.strategy.args
    gathered = args.ds.zero_stage == 3 or args.ds.tensor_parallel_size > 1
    if gathered or args.train.async_enable or trainer.use_cuda_ipc or args.vllm.sync_with_ray:
        return
    trainer.vllm_engines = [
        engine if isinstance(engine, AnnouncedWeights) else AnnouncedWeights(engine)
        for engine in trainer.vllm_engines or []
    ]


class AnnouncedWeights:
    """An engine as OpenRLHF's weight sync sees it.

    The first sync goes to the engine as it is, and tells which weights the later ones have.

    Args:
        engine: handle of OpenRLHF's RolloutRayActor.
    """

    def __init__(self, engine) -> None:
        self._engine = engine
        self._weights: list[dict] = []  # arguments of `update_weight`, of a sync
        self._next = 0  # place of the weight that comes next
        self._knows_all = False
        self._received: ObjectRef  # of the sync
        self._nothing = ray.put(None)
        self.update_weight = SimpleNamespace(remote=self._update_weight)

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def _update_weight(self, name: str, **arguments) -> ObjectRef:
        """What OpenRLHF waits for after this weight's broadcast: nothing; for the last one, that the engine has all.

        Raises:
            RuntimeError: the sync has other weights than the first one.
        """
        weight = {"name": name, **arguments}
        is_last = arguments["empty_cache"]
        if not self._knows_all:
            self._weights.append(weight)
            self._knows_all = is_last
            return self._engine.update_weight.remote(**weight)
        if weight != self._weights[self._next]:
            raise RuntimeError(f"the policy has the weight {weight} in the place of {self._weights[self._next]}")
        if self._next == 0:
            self._received = self._engine.__ray_call__.remote(receive_weights, self._weights)
        self._next = 0 if is_last else self._next + 1
        return self._received if is_last else self._nothing


def receive_weights(engine_actor, weights: list[dict]) -> None:
    """Run in an engine's actor: its workers receive these weights, in this order."""
    llm = engine_actor.llm
    received = llm.collective_rpc(update_weights, args=(weights,))
    # Ray calls this in another thread than vLLM's loop.
    asyncio.run_coroutine_threadsafe(received, llm.output_handler.get_loop()).result()


def update_weights(worker, weights: list[dict]) -> None:
    """Run in a worker of vLLM, which is OpenRLHF's WorkerWrap as well.

    It receives all weights even if one cannot be loaded, since the first rank broadcasts them all.

    Raises:
        Exception: the first that loading has raised.
    """
    failure = None
    for weight in weights:
        try:
            worker.update_weight(**weight)
        except Exception as error:
            failure = failure or error
    if failure:
        raise failure


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

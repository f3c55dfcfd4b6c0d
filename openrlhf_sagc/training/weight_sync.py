"""One call per engine and weight sync. OpenRLHF makes one for every parameter, and waits for each.

The first rank announces to every engine all weights that it will broadcast, and broadcasts them one after the other.
"""

import asyncio
from types import SimpleNamespace

import ray
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

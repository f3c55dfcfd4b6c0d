"""The death of vLLM's engine core, a process of its own, which Ray does not hear of."""

import os
import sys
import threading
import time

PAUSE = 1.0  # seconds between two looks


def end_with_the_core(engine_actor) -> None:
    """Run in an engine's actor: the actor's process ends when its engine core has died.

    The policy may wait for that core in a rendezvous or a broadcast. Ray hears of a process that ends, so the run ends too.

    Args:
        engine_actor: OpenRLHF's RolloutRayActor.
    """
    threading.Thread(target=_watch, args=(engine_actor.llm,), name="engine core", daemon=True).start()


def _watch(llm) -> None:
    while not llm.errored:
        time.sleep(PAUSE)
    reason = " ".join(f"{type(llm.dead_error).__name__}: {llm.dead_error}".split())
    print(f"openrlhf_sagc: vLLM's engine core has died, and its actor ends: {reason}", file=sys.stderr, flush=True)
    os._exit(1)

"""In an engine's actor: its end, for which nobody should wait. Ray hears of it, and so does the run."""

import os
import sys
import threading
import time

from openrlhf_sagc.engine.answers import describe

PAUSE = 1.0  # seconds between two looks
LAST = 6.0  # seconds that this process has left where its core ended with the whole run, which is no death to speak of
RENDEZVOUS = "init_process_group"  # of the policy and all engines, OpenRLHF's method of vLLM's workers


def end_with_the_core(engine_actor) -> None:
    """Run in an engine's actor: its process ends when vLLM's engine core has died, or could not join the weights' group.

    The core is a process of its own, of which Ray does not hear. The policy waits for it in a rendezvous or a broadcast,
    which may last until the process group's timeout of half an hour.

    Args:
        engine_actor: OpenRLHF's RolloutRayActor.
    """
    llm, call = engine_actor.llm, engine_actor.llm.collective_rpc

    def watch() -> None:
        while not llm.errored:
            time.sleep(PAUSE)
        time.sleep(LAST)
        _end(f"vLLM's engine core has died: {describe(llm.dead_error, where='its lines above say why')}")

    async def collective_rpc(method, *args, **kwargs):
        try:
            return await call(method, *args, **kwargs)
        except Exception as error:
            if method != RENDEZVOUS:
                raise
            _end(f"this engine could not join the group in which weights are sent: {describe(error)}")

    llm.collective_rpc = collective_rpc
    threading.Thread(target=watch, name="engine core", daemon=True).start()


def _end(why: str) -> None:
    print(f"openrlhf_sagc: {why}; its actor ends", file=sys.stderr, flush=True)
    os._exit(1)

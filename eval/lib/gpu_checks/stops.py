"""Check 9: an engine whose rollouts are stopped again and again has nothing left, and decodes as a fresh one."""

import os
import time
from collections.abc import Iterator
from typing import Any

from lib.gpu_checks.outcomes import FAIL, Outcome, measured
from lib.gpu_checks.processes import ROOT
from lib.gpu_checks.runs import model, need_stack, texts

GROUP = 8  # rollouts
LONGEST = 4096  # tokens of a rollout, which is stopped long before
GREEDY = 64  # tokens of each of GREEDY_PROMPTS
GREEDY_PROMPTS = 8
AT_ONCE, STOPS = 512, 20
AT_ONCE_ON_CPU, STOPS_ON_CPU = 16, 4
BEGUN = 4  # tokens of a rollout, on average, before any is stopped
WAIT = 30.0  # seconds, by which all rollouts run, or have ended once they are stopped


def check(node) -> Outcome:
    """Stop all rollouts, or first those of half the groups; then ask what is left, and for greedy tokens."""
    need_stack(node)
    import ray

    at_once, stops = (AT_ONCE_ON_CPU, STOPS_ON_CPU) if node.dry_run else (AT_ONCE, STOPS)
    folder = model(node, "long", max_position_embeddings=LONGEST)
    ray_starts(node)
    try:
        return stopped_often(Engine(folder, at_once, eager=node.dry_run), texts(node), at_once, stops)
    finally:
        ray.shutdown()


def ray_starts(node) -> None:
    """Start Ray as the package's command does, with its OpenRLHF in the workers."""
    import sys

    sys.path.insert(0, str(ROOT))
    from openrlhf_sagc.run.trees import PATCHED, bring_tree, use_tree

    # With which Ray's workers and vLLM's processes begin.
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    bring_tree(use_tree(PATCHED), eager=node.dry_run)
    import ray

    ray.init(address="local", include_dashboard=False, _temp_dir=os.environ["RAY_TMPDIR"])


class Engine:
    """A vLLM engine of the product, in its Ray actor.

    Args:
        folder: of the model.
        slots: rollouts that it decodes at a time.
        eager: without CUDA graphs.
    """

    def __init__(self, folder, slots: int, eager: bool) -> None:
        from openrlhf.trainer.ray.vllm_engine import create_vllm_engines
        from transformers import AutoTokenizer

        settings = {"gpu_memory_utilization": 0.5, "engine_args": {"max_num_seqs": slots}}
        (self.actor,) = create_vllm_engines(1, 1, str(folder), 0, False, False, eager, LONGEST, **settings)
        from openrlhf_sagc.engine.rollouts import watch_rollouts

        self._wait(self.actor.set_tokenizer.remote(AutoTokenizer.from_pretrained(folder)))
        self.call(watch_rollouts, timeout=WAIT, retries=0)

    def call(self, function, *inputs, **settings) -> Any:
        """Run a function in the actor."""
        return self._wait(self.actor.__ray_call__.remote(function, *inputs, **settings))

    def respond(self, prompt: object, **sampling: object):
        """A reference to the responses of a prompt, or to what stands for one."""
        from vllm import SamplingParams

        settings = SamplingParams(ignore_eos=True, **{"max_tokens": LONGEST // 2, **sampling})
        return self.actor.generate_responses.remote(prompt, "", settings, LONGEST)

    def greedy(self, prompts: list[str]) -> list[list[int]]:
        """Their tokens, one prompt after the other, so that the batches are the same at each call."""
        found = [self._wait(self.respond(prompt, temperature=0.0, max_tokens=GREEDY)) for prompt in prompts]
        return [list(map(int, response["observation_tokens"])) for (response,) in found]

    def begin(self, numbers: range, prompts: list[str]) -> None:
        """Begin a group of GROUP rollouts of each number, and wait until all of them decode."""
        from openrlhf_sagc.decisions.records import Dispatch, Prompt, Share

        shares = [
            Share(number, Prompt(prompts[number % len(prompts)], "", None, 1), tuple(range(GROUP)))
            for number in numbers
        ]
        before, deadline = self.call(tokens_so_far), time.monotonic() + WAIT
        self._wait(self.respond(Dispatch(shares), temperature=1.0))
        while self.call(tokens_so_far) < before + BEGUN * len(numbers) * GROUP and time.monotonic() < deadline:
            time.sleep(0.02)

    def ended(self, count: int) -> Iterator[tuple[int, Any]]:
        """Of so many rollouts the group's number and what was measured, as they end."""
        import ray

        from openrlhf_sagc.decisions.records import ROLLOUT, Collect

        while count:
            (found,) = ray.get(self.respond(Collect()), timeout=WAIT)
            count -= len(found)
            yield from ((rollout.number, rollout.response[ROLLOUT]) for rollout in found)

    def unfinished(self) -> int:
        return self._wait(self.actor.get_num_unfinished_requests.remote())

    @staticmethod
    def _wait(reference) -> Any:
        import ray

        return ray.get(reference)


def stopped_often(engine: Engine, prompts: list[str], at_once: int, stops: int) -> Outcome:
    """As `check`, with an engine that has decoded nothing yet."""
    from openrlhf_sagc.engine.rollouts import stop_rollouts

    fresh = engine.greedy(prompts[:GREEDY_PROMPTS])
    groups = at_once // GROUP
    rollouts = []
    for stop in range(stops):
        numbers = range(stop * groups, (stop + 1) * groups)
        engine.begin(numbers, prompts)
        if stop % 2:  # some of the groups first: the others run on
            some = list(numbers[::2])
            engine.call(stop_rollouts, some)
            ended = list(engine.ended(len(some) * GROUP))
            if others := {number for number, _ in ended} - set(some):
                return Outcome(FAIL, len(others), "groups have ended that were not stopped", "0")
            rollouts += ended
        engine.call(stop_rollouts)
        rollouts += engine.ended((stop + 1) * groups * GROUP - len(rollouts))
    if wrong := [rollout for _, rollout in rollouts if not rollout.stopped or not rollout.tokens]:
        of_these = f"of {len(rollouts)} rollouts were not stopped while they ran"
        return Outcome(FAIL, len(wrong), of_these, "0", f"such as {wrong[0]}")
    if left := engine.unfinished():
        return Outcome(FAIL, left, "requests are left", "0")
    if engine.call(reset_cache) is not True:
        return Outcome(FAIL, reason="requests hold blocks of the KV cache: it cannot be reset")
    same = sum(one == other for one, other in zip(fresh, engine.greedy(prompts[:GREEDY_PROMPTS])))
    reason = f"{len(rollouts):,} rollouts in {stops} stops"
    return measured(same, f"of {len(fresh)} greedy responses are those before", least=len(fresh), reason=reason)


def tokens_so_far(engine_actor) -> float:
    """Run in the actor: tokens that vLLM has generated."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    return sum(metric.value for metric in get_metrics_snapshot() if metric.name == "vllm:generation_tokens")


def reset_cache(engine_actor) -> bool:
    """Run in the actor: vLLM's answer to a reset of its prefix cache, which it refuses as long as a block is held."""
    import asyncio

    loop = engine_actor.llm.output_handler.get_loop()
    return asyncio.run_coroutine_threadsafe(engine_actor.llm.reset_prefix_cache(), loop).result()

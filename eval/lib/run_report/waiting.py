"""What rollouts wait for, and the flag that shortens it: a slot of an engine, or a step's last rollouts."""

import pandas as pd
from lib.run_report.measured import Arm

LEAST = 0.1  # share from which on a wait is named
SLOTS = (
    "{}: a rollout waits {:.1f} s for a slot of its engine, {:.0%} of a step's generation. More slots shorten that, if "
    "memory holds them: --vllm.engine_args '{{\"max_num_seqs\": 512}}'."
)
LAST_ROLLOUTS = (
    "{}: engines wait {:.1f} s for a step's last rollouts, {:.0%} of it. --rollout.tail_batching.enable shortens that."
)


def lines(arms: list[Arm]) -> list[str]:
    """A line for each long wait of an arm that logs it; nothing of a comparison's policies, which are what they are."""
    found = []
    for arm in arms:
        if any(run.kept.get("comparison") or run.asynchronous for run in arm.runs):
            continue
        mean = pd.concat([run.later for run in arm.runs])[["seconds", "generation", "queue", "idle_tail"]].mean()
        if mean["queue"] >= LEAST * mean["generation"]:
            found.append(SLOTS.format(arm.name, mean["queue"], mean["queue"] / mean["generation"]))
        if mean["idle_tail"] >= LEAST * mean["seconds"] and not _is_batched(arm):
            found.append(LAST_ROLLOUTS.format(arm.name, mean["idle_tail"], mean["idle_tail"] / mean["seconds"]))
    return found


def _is_batched(arm: Arm) -> bool:
    """Whether a run has tail batching, by its log or by its flags."""
    return any(
        run.steps["long_round"].notna().any() or run.kept.get("flags", {}).get("rollout.tail_batching.enable")
        for run in arm.runs
    )

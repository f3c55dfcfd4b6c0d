"""What is measured of the rollouts of a step, for the controller and the log."""

import statistics
from typing import NamedTuple

from openrlhf_sagc.controller import StragglerAwareGroupController


class Rollouts(NamedTuple):
    """One dispatched group of G rollouts; of one that was stopped, what there was then."""

    tokens: list[int]  # [G] response tokens
    seconds: list[float]  # [G] from dispatch in the engine's actor to finish, without the wait in vLLM's queue
    queue_seconds: list[float]  # [G] that wait
    stopped: list[bool]  # [G] so that it would have become longer; also of an agent that failed


def rollouts_of(responses: list[dict]) -> Rollouts:
    """Lengths of one group of G from the engine's responses."""
    waits = [response["queue_seconds"] for response in responses]
    return Rollouts(
        tokens=[response["tokens"] for response in responses],
        seconds=[max(response["seconds"] - wait, 0.0) for response, wait in zip(responses, waits)],
        queue_seconds=waits,
        stopped=[response["stopped"] or "action_ranges" not in response for response in responses],
    )


def rollout_metrics(groups: list[Rollouts], longest: int) -> dict[str, float]:
    """Scalars of one step's rollouts for the log.

    Args:
        groups: every group that came back.
        longest: tokens a response may have.

    Returns:
        `sagc/length_headroom`, `longest` over the median response; `rollout/response_length_{median,max}` in tokens and
        `rollout/seconds_{median,max}` over the finished rollouts, the latter without the wait in vLLM's queue, whose
        mean is `rollout/queue_seconds`; `rollout/idle_fraction`: 1 - mean / max in tokens over all rollouts, which is
        the share of decode slots that stand idle where all start together. Nothing where no rollout has finished.
    """
    rollouts = [rollout for group in groups for rollout in zip(*group)]
    generated = [tokens for tokens, *_ in rollouts]
    finished = [rollout for rollout in rollouts if not rollout[-1]]
    if not finished:
        return {}
    tokens, seconds, waits, _ = zip(*finished)
    median = statistics.median(tokens)
    return {
        "sagc/length_headroom": longest / max(median, 1),
        "rollout/response_length_median": float(median),
        "rollout/response_length_max": float(max(tokens)),
        "rollout/idle_fraction": 1 - statistics.fmean(generated) / max(*generated, 1),
        "rollout/seconds_median": statistics.median(seconds),
        "rollout/seconds_max": max(seconds),
        "rollout/queue_seconds": statistics.fmean(waits),
    }


def control_warnings(
    controller: StragglerAwareGroupController, signal: str, headroom: float, longest: int
) -> dict[str, str]:
    """What keeps the controller from doing its work, by kind; empty if nothing does.

    Args:
        controller: after a step.
        signal: "tokens" or "seconds".
        headroom: `longest` over the median response.
        longest: tokens a response may have.
    """
    warnings = {}
    if not controller.feasible:
        warnings["infeasible"] = (
            f"--rollout.sagc.max_straggler_rate {controller.max_straggler_rate} is out of reach: even groups of "
            f"{controller.group_sizes[0]} are seen to exceed it (hazard {controller.hazard:.3f}); raise the limit or "
            "--rollout.sagc.straggler_ratio"
        )
    if signal == "tokens" and headroom < controller.straggler_ratio:
        warnings["censored"] = (
            f"the longest response allowed, {longest} tokens, is {headroom:.2f} times the median one, so that hardly a "
            f"response can reach --rollout.sagc.straggler_ratio {controller.straggler_ratio}: stragglers are cut off "
            "before they count; allow longer responses or lower the ratio"
        )
    return warnings

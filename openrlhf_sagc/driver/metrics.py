"""What the log says of a step, and the warnings about the controller."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from openrlhf_sagc.config.refusal import PREFIX
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.decisions.dynamic_sampling import EQUAL, REASONS
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.records import Rollout
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.driver.samples import loss_tokens
from openrlhf_sagc.driver.step_seconds import IDLE_TAIL, REWARD_WAIT


def control_metrics(planner: StepPlanner, step: Step) -> dict[str, float]:
    """Scalars of the policies after a step: `sagc/*`, `tail_batching/*` and `token_weight/*` where those are on."""
    control = planner.controller.metrics()
    control |= {"next_group_size": float(planner.controller.group_size), "group_size": float(step.group_size)}
    weights = planner.token_weights.metrics() if planner.token_weights else {}
    rounds = planner.batcher.metrics()
    if rounds:
        rounds |= {"wasted_tokens": float(wasted_tokens(step))}
    if rounds and planner.predictor:
        rounds |= {name: getattr(planner.predictor, name) for name in ("explained", "rank_correlation")}
    return (
        {f"sagc/{name}": value for name, value in control.items()}
        | {f"tail_batching/{name}": value for name, value in rounds.items()}
        | {f"token_weight/{name}": value for name, value in weights.items()}
    )


def wasted_tokens(step: Step) -> int:
    """Of rollouts that a closed step can neither train nor judge: stopped ones, and those of groups without a place."""
    return step.unused_tokens + sum(map(loss_tokens, step.unused))


def sampling_metrics(step: Step) -> dict[str, float]:
    """Scalars of what a step dispatched and what became of it: `dynamic_filtering/*` and `rollout/age_*`, in updates.

    `rollout/equal_groups` is the share of the trained and dropped groups whose rewards are all equal.
    With a pool `rollout/age_share_N` is the share of the trained tokens whose group is N updates old, for each age it may have.

    Args:
        step: that is closed; its flight is what the next step begins with.
    """
    trained, unused, flight = step.trained, step.unused, step.flight
    dropped, ages = step.dropped, [step.number - group.weights for group in trained]
    equal = sum(len({sample.raw_score for sample in group.samples}) == 1 for group in trained)
    equal += sum(dropped[reason] for reason in EQUAL)
    counts = {
        "dispatched": step.dispatched,
        "gen_batches": step.dispatched / step.num_groups,
        "accepted": len(trained) + len(unused) + len(flight.accepted),
        "acceptance_rate": step.acceptance_rate,
        **{f"dropped_{reason}": dropped[reason] for reason in (*REASONS, *dropped)},
        "aborted": step.stopped,
        "aborted_tokens": step.unused_tokens,
        "discarded": len(unused),
        "kept": len(flight.accepted),
        "kept_running": len(flight.running),
        "queued_prompts": len(step.queue),
        "missing": step.num_groups - len(trained),
        "given_up": len(step.given_up),
    }
    age = {"mean": statistics.fmean(ages), "p99": float(np.percentile(ages, 99)), "max": float(max(ages))}
    if step.pool:
        tokens: Counter[int] = Counter()
        for updates, group in zip(ages, trained):
            tokens[updates] += loss_tokens(group)
        all_tokens = max(tokens.total(), 1)
        age |= {f"share_{updates}": tokens[updates] / all_tokens for updates in range(step.pool.max_age + 1)}
    age_metrics = {f"rollout/age_{name}": updates for name, updates in age.items()}
    return {f"dynamic_filtering/{name}": float(count) for name, count in counts.items()} | {
        "rollout/equal_groups": equal / max(len(trained) + dropped.total(), 1),
        **age_metrics,
    }


def rollout_metrics(groups: Sequence[Sequence[Rollout]], longest: int) -> dict[str, float]:
    """Scalars of the rollouts that a step has shown the controller; nothing if none of them has finished.

    `sagc/length_headroom` is `longest` over the median response. `rollout/response_length_{median,max}` in tokens and
    `rollout/seconds_{median,max}` are over the finished rollouts, seconds without the wait in vLLM's queue, whose mean is
    `rollout/queue_seconds`. `rollout/idle_fraction` is 1 - mean / max of the tokens of all rollouts: the share of decode
    slots that stand idle where all rollouts start together.

    Args:
        groups: the members of every group that came back.
        longest: tokens that a response may have.
    """
    rollouts = [rollout for group in groups for rollout in group]
    finished = [rollout for rollout in rollouts if rollout.finished]
    if not finished:
        return {}
    generated = [rollout.tokens for rollout in rollouts]
    tokens, seconds = [rollout.tokens for rollout in finished], [rollout.running_seconds for rollout in finished]
    median = statistics.median(tokens)
    return {
        "sagc/length_headroom": longest / max(median, 1),
        "rollout/response_length_median": float(median),
        "rollout/response_length_max": float(max(tokens)),
        "rollout/idle_fraction": 1 - statistics.fmean(generated) / max(*generated, 1),
        "rollout/seconds_median": statistics.median(seconds),
        "rollout/seconds_max": max(seconds),
        "rollout/queue_seconds": statistics.fmean(rollout.queue_seconds for rollout in finished),
    }


def draft_metrics(counts: Mapping[str, float], mib: float) -> dict[str, float]:
    """Scalars of the engines' drafts in a step; nothing if they have decoded nothing.

    `rollout/tokens_per_iteration` is the mean of a request, `rollout/draft_acceptance` the share of drafted tokens that
    the policy sampled, if any were, `rollout/draft_mib` what drafts take of the driver's and all engines' memory.

    Args:
        counts: of the step, see `Drafts.counts`.
        mib: of the driver's memory.
    """
    if not counts["iterations"]:
        return {}
    tokens = {"rollout/tokens_per_iteration": counts["tokens"] / counts["iterations"]}
    accepted = {"rollout/draft_acceptance": counts["accepted"] / counts["drafted"]} if counts["drafted"] else {}
    return tokens | accepted | {"rollout/draft_mib": counts["mib"] + mib}


def wait_metrics(idle_tail: float, rewards: float, generation: float, rollouts: Iterable[Rollout]) -> dict[str, float]:
    """Scalars of what a step has waited for, in seconds and as a share of its generation, and of requests for rewards.

    Args:
        idle_tail, rewards, generation: seconds, see `idle_seconds`.
        rollouts: that came back.
    """
    refused, retried = map(sum, zip((0, 0), *((rollout.refused, rollout.retried) for rollout in rollouts)))
    return {
        IDLE_TAIL: idle_tail,
        REWARD_WAIT: rewards,
        "rollout/reward_wait_share": rewards / max(generation, 1e-9),
        "rollout/reward_requests_refused": float(refused),
        "rollout/reward_requests_retried": float(retried),
    }


def control_warnings(sagc: Settings, metrics: dict[str, float], longest: int) -> dict[str, str]:
    """What keeps group control from doing its work, by kind; empty if nothing does, or if no policy knows the limit.

    Args:
        sagc: the flags of group control.
        metrics: of a step.
        longest: tokens that a response may have.
    """
    warnings = {}
    if "sagc/hazard" in metrics and not metrics.get("sagc/feasible", 1.0):
        warnings["infeasible"] = (
            f"{PREFIX}max_straggler_rate {sagc.max_straggler_rate} is out of reach: even groups of "
            f"{min(sagc.group_sizes)} exceed it (hazard {metrics['sagc/hazard']:.3f}); raise the limit or {PREFIX}straggler_ratio"
        )
    headroom = metrics.get("sagc/length_headroom", math.inf)
    if "sagc/feasible" in metrics and sagc.signal == "tokens" and headroom < sagc.straggler_ratio:
        warnings["censored"] = (
            f"the longest response allowed, {longest} tokens, is {headroom:.2f} times the median one, so truncation "
            f"hides stragglers at {PREFIX}straggler_ratio {sagc.straggler_ratio} and the limit has no effect: "
            "allow longer responses or lower the ratio"
        )
    return warnings

"""What the scheduler tells its user: warnings of single events, and why a run ends whose step has too few groups."""

from collections.abc import Mapping, Sequence

from openrlhf_sagc.config.layout import fewest_samples
from openrlhf_sagc.config.refusal import DRAFTS
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.decisions import loop
from openrlhf_sagc.decisions.records import Group
from openrlhf_sagc.decisions.step import MOST_STOPS, Step
from openrlhf_sagc.driver.prompt_excerpt import excerpt
from openrlhf_sagc.driver.reward_failures import RewardFailures
from openrlhf_sagc.driver.running_groups import RunningGroups
from openrlhf_sagc.driver.step_seconds import REWARD_WAIT

NO_LOG_PROBS = (
    "the agent returns no rollout_log_probs, so its samples are trained without importance correction, tokens of older weights "
    "as if they were new: return them, or give --algo.advantage.is_correction_level off, which says no more of it"
)
MUCH_FASTER = 0.9  # share of a step's seconds that another split must stay below to be named
MUCH = 0.2  # of a step's generation, from which on a run is told that it waits for rewards


def shortfall(step: Step, settings: Settings, failures: RewardFailures) -> str:
    """Why a run ends whose step has too few groups or samples to be trained, and what would fill it; "" if it has enough.

    Args:
        step: that may dispatch no more.
        failures: rewards that failed in it.
    """
    algo, accepted, needed = settings.algo, step.flight.accepted, fewest_samples(settings)
    samples = sum(len(group.samples) for group in accepted)
    if samples >= needed and (algo.dynamic_filtering_at_cap == "keep" or len(accepted) >= step.num_groups):
        return ""
    if len(accepted) >= step.num_groups:
        few = f"step {step.number + 1} has {samples} samples with a reward, and training takes {needed} at least"
        return f"{few}: repair the reward, {failures.first}"
    keep = "" if algo.dynamic_filtering_at_cap == "keep" else ", or --algo.dynamic_filtering_at_cap keep"
    own = algo.dynamic_filtering_policy
    advice = f"use a larger number, prompts that {f'{own} keeps' if own else 'are solved sometimes'}{keep}"
    if step.dropped["reward_missing"] * 2 > step.dropped.total():
        advice = f"repair the reward, {failures.first}"
    most = f"--algo.dynamic_filtering_max_gen_batches {algo.dynamic_filtering_max_gen_batches}"
    return f"{most} reached: {loop.shortfall(step)}: {advice}"


def reward_wait_warning(number: int, generation: float, metrics: dict[str, float]) -> dict[str, str]:
    """Says, by kind, where rewards have taken more than a MUCH of a step's generation.

    Args:
        number: of the step, from 0.
        generation: its seconds.
        metrics: the step's.
    """
    seconds = metrics[REWARD_WAIT]
    if seconds <= MUCH * generation:
        return {}
    refused, retried = (int(metrics[f"rollout/reward_requests_{name}"]) for name in ("refused", "retried"))
    line = (
        f"for {seconds:.3g} of the {generation:.3g} s of step {number + 1}'s rollouts no response was decoded and the run "
        f"waited for rewards ({refused} requests refused, {retried} made again): a faster reward, or more of its servers in "
        "--reward.remote_url, saves that; tail batching and group control do not"
    )
    return {"rewards": line}


def drafts_line(counts: Mapping[str, float]) -> str:
    """What drafts have gained, by their counts so far, see `Drafts.counts`."""
    tokens, accepted = counts["tokens"] / counts["iterations"], counts["accepted"] / max(counts["drafted"], 1)
    return (
        f"drafts have saved {100 * (1 - 1 / tokens):.0f} % of the iterations: a request got {tokens:.2f} tokens in each "
        f"(1 without {DRAFTS}), and {100 * accepted:.0f} % of the drafted tokens were what the policy sampled"
    )


def silence_warning(step: Step, seconds: float) -> str:
    """No group of the step has come back for so many seconds, though some run."""
    running = step.flight.running
    return (
        f"no group of step {step.number + 1} has come back for {seconds / 60:.0f} minutes, {len(running)} are waited for: "
        f"very long responses, or an agent or tool that hangs, which --rollout.agent_timeout would end; the first prompt is "
        f"{excerpt(running[min(running)].group.prompt.text)}"
    )


def given_up_warning(group: Group) -> str:
    """The group's prompt is not drawn again."""
    return (
        f"a prompt is given up and not trained, since its group did not come back in {MOST_STOPS + 1} attempts: an agent "
        f"or tool that hangs on it; the prompt is {excerpt(group.prompt.text)}"
    )


def equal_rewards_warning(rewards: Sequence[float]) -> str:
    """What a user is told whose first step has these rewards, all equal: the usual reasons."""
    return (
        f"all {len(rewards)} rewards of the first step are {rewards[0]:g}, so there is nothing to learn from them; the usual "
        "reasons: (1) the reward function runs in a thread, where signal.alarm and math-verify's timeouts raise an error that "
        "it takes for a wrong answer (parsing_timeout=None, timeout_seconds=None); (2) --data.label_key or the format of the "
        "answer is another than the reward looks for; (3) the model does not answer in that format, or responses end before "
        "their answer (rollout/truncated_rate; --rollout.max_new_tokens)"
    )


def going_on_line(running: RunningGroups) -> str:
    """What a resumed pool does with the groups that ran when its checkpoint was saved."""
    begun = [had for left in running.left.values() for had in left.values()]
    tokens = sum(len(had.tokens) for had in begun if had)
    return (
        f"of {len(running.groups)} groups in flight {len(begun)} rollouts that ran go on, with {tokens} tokens that they have, "
        f"and {len(running.ended)} had ended"
    )


def who_waits(engines: float, actors: float, settings: Settings) -> str:
    """Which side of an asynchronous run waits, and the split of its GPUs with which both would wait as long.

    Args:
        engines, actors: shares of the time in which they had nothing to do.
        settings: of the run.
    """
    vllm, actor = settings.vllm, settings.actor
    rolling, training = vllm.num_engines * vllm.tensor_parallel_size, actor.num_nodes * actor.num_gpus_per_node
    said = f"the engines waited for {100 * engines:.0f} % of the time, the actors for {100 * actors:.0f} %"

    def seconds(gpus: int) -> float:
        """Of a step, over those it takes now, with so many GPUs for the engines."""
        return max((1 - engines) * rolling / gpus, (1 - actors) * training / (rolling + training - gpus))

    step = vllm.tensor_parallel_size
    best = min(range(step, rolling + training, step), key=seconds, default=rolling)
    if best == rolling or seconds(best) > MUCH_FASTER * seconds(rolling):
        return f"{said}: no other split of the {rolling + training} GPUs is expected to be much faster"
    share = 100 * seconds(best) / seconds(rolling)
    return f"{said}: with {best} GPUs for engines and {rolling + training - best} for actors a step may take {share:.0f} % as long"

"""The start-up line: what a run's flags come to."""

from openrlhf_sagc.advantages.estimators import estimator_named
from openrlhf_sagc.config.layout import samples_per_step
from openrlhf_sagc.config.refusal import MAX_AGE, TAIL
from openrlhf_sagc.config.savings import describe_savings
from openrlhf_sagc.config.settings import Settings, prompt_ratio


def describe(args: Settings) -> str:
    """The start-up line: what the flags come to."""
    flags, tail, estimator = args.rollout.sagc, args.rollout.tail_batching, args.algo.advantage.estimator
    sizes = sorted(set(flags.group_sizes))
    samples, product = samples_per_step(args)
    if flags.hold == "samples":
        combinations = ", ".join(f"{samples // size} x {size}" for size in sizes)
        kept = len(sizes) > 1 and args.algo.dynamic_filtering_surplus == "keep"
        but = ", but for groups that are kept from another size" if kept else ""
        parts = [f"every step has {samples} samples ({product}), as prompts x group size {combinations}{but}"]
    else:
        combinations = ", ".join(f"{size} = {args.rollout.batch_size * size}" for size in sizes)
        parts = [
            f"every step has {args.rollout.batch_size} prompts (--rollout.batch_size), at group size {combinations} samples"
        ]
    if flags.policy:
        parts.append(f"{flags.policy} chooses the group size of each")
    elif len(sizes) > 1:
        aim = (
            "as large as possible" if flags.objective == "size" else "the one with the most effective samples a second"
        )
        unit = "response tokens" if flags.signal == "tokens" else "seconds"
        parts.append(
            f"the first group size is {args.rollout.n_samples_per_prompt}; each later one is {aim}, with a "
            f"straggler in at most {100 * flags.max_straggler_rate:g} % of the groups in the long run (a rollout of "
            f"{flags.straggler_ratio:g} times the group's median {unit})"
        )
    if args.algo.dynamic_filtering_policy:
        parts.append(f"{args.algo.dynamic_filtering_policy} says which groups are trained")
    if args.rollout.pool:
        parts.append(_pool(args))
    if tail.enable:
        parts.append(_tail_batching(args))
    if tail.enable and len(sizes) > 1 and tail.response_ratio > 1:
        parts.append(
            f"{TAIL}response_ratio {tail.response_ratio:g} stops stragglers before they count, so the limit has little effect: "
            "use 1"
        )
    if tail.enable and estimator_named(estimator).whitens:
        parts.append(
            f"--algo.advantage.estimator {estimator} whitens advantages over each step, so tail batching changes them: "
            "group_norm keeps them"
        )
    parts.append(
        f"at most {samples // args.train.batch_size} optimizer step(s) per rollout and epoch; the learning rate follows the "
        "share of prompts used"
    )
    if args.rollout.drafts != "off" and args.vllm.num_engines:
        parts.append("engines draft from other responses to a prompt where that pays, which changes no distribution")
    parts.append(describe_savings(args))
    if args.rollout.trace is not None:
        parts.append(f"a row of every rollout goes to {args.rollout.trace}")
    if args.train.rollouts_to:
        parts.append(f"the rollouts of each step are kept in {args.train.rollouts_to}")
    if args.train.rollouts_from:
        parts.append(f"no engine is started: the rollouts of each step are those in {args.train.rollouts_from}")
    return "; ".join(parts)


def warn_of_no_checkpoint(args: Settings, prompts: int) -> None:
    """Say that a run of so many prompts an episode saves no checkpoint, though --ckpt.save_steps asks for some."""
    sagc, batch = args.rollout.sagc, args.rollout.batch_size
    fewest = samples_per_step(args)[0] // max(sagc.group_sizes) if sagc.hold == "samples" else batch
    steps = -(-prompts * args.train.num_episodes // fewest)  # a filter leaves fewer
    saves_best = args.eval.dataset and 0 < args.eval.steps <= steps and args.ckpt.best_metric_key != "none"
    if args.ckpt.save_steps > steps and not saves_best:
        print(
            f"openrlhf_sagc: --ckpt.save_steps {args.ckpt.save_steps} is beyond the last step, since {prompts} prompts in "
            f"{args.train.num_episodes} episode(s) make {steps} at most: no checkpoint is saved before the end; use "
            f"--ckpt.save_steps {max(steps // 2, 1)} or less"
        )


def _pool(args: Settings) -> str:
    level = args.algo.advantage.is_correction_level
    corrected = (
        "tokens of older weights count as if they were new" if level == "off" else "importance correction is on"
    )
    return (
        f"{args.rollout.pool} prompts stay in flight over steps, and no group is trained more than {args.rollout.max_age} "
        f"updates late ({MAX_AGE}); {corrected} (--algo.advantage.is_correction_level {level})"
    )


def _tail_batching(args: Settings) -> str:
    tail, ratio = args.rollout.tail_batching, prompt_ratio(args)
    if tail.method == "stop":
        return (
            f"short rounds dispatch {ratio:g} times the prompts and {tail.response_ratio:g} times the rollouts per prompt; "
            "long rounds finish the prompts that short ones leave behind"
        )
    sorted_steps = "each step has prompts whose earlier responses were alike in length"
    if ratio > 1:
        sorted_steps += f", and {ratio:g} times as many as it needs"
    if tail.method == "sort":
        return sorted_steps
    return f"once a history of lengths explains enough, {sorted_steps}; the log says when, and what comes before"

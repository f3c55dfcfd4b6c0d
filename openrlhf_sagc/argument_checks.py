"""What flags ask of each other and of the run: called by arguments.py, with the arguments nested by their dots.

A SystemExit is one line that names the flag, the value and what would work.
"""

import math
from types import SimpleNamespace

from openrlhf_sagc.advantages import GROUP_ESTIMATORS

PREFIX = "--rollout.sagc."
TAIL = "--rollout.tail_batching."
FILTER = "--algo.dynamic_filtering_"
REWARD = "--reward."
LENGTH_AWARE = "--rollout.length_aware_dispatch"


def check_modes(args: SimpleNamespace) -> None:
    """Modes of the run that group control, tail batching or dynamic sampling cannot have."""
    rollout = args.rollout
    if args.algo.dynamic_filtering_surplus == "keep" and args.vllm.enable_sleep:
        raise SystemExit(
            f"openrlhf_sagc: {FILTER}surplus keep does not work with --vllm.enable_sleep, which drops what vLLM is "
            f"generating: use {FILTER}surplus discard"
        )
    if (
        args.algo.dynamic_filtering_surplus == "keep"
        and rollout.sagc.signal == "seconds"
        and not args.train.partial_rollout_enable
    ):
        raise SystemExit(
            f"openrlhf_sagc: {FILTER}surplus keep does not work with {PREFIX}signal seconds, as what it keeps running is "
            f"paused while the policy trains: use {FILTER}surplus discard or {PREFIX}signal tokens"
        )
    tail = rollout.tail_batching
    if tail.enable and args.algo.dynamic_filtering_surplus == "keep":
        raise SystemExit(
            f"openrlhf_sagc: {FILTER}surplus keep does not work with {TAIL}enable, which rolls what is left over out "
            f"again with the weights of its long rounds: use {FILTER}surplus discard"
        )
    if tail.enable and args.train.partial_rollout_enable:
        raise SystemExit(
            f"openrlhf_sagc: {TAIL}enable does not work with --train.partial_rollout_enable, which changes the weights "
            "under running rollouts, and they decide which prompts wait: drop one of them"
        )
    if tail.enable and args.algo.dynamic_filtering_max_gen_batches < tail.prompt_ratio:
        raise SystemExit(
            f"openrlhf_sagc: {FILTER}max_gen_batches {args.algo.dynamic_filtering_max_gen_batches} does not allow "
            f"{TAIL}prompt_ratio {tail.prompt_ratio}: use {math.ceil(tail.prompt_ratio)} or more"
        )
    if rollout.vllm_generate_batch_size != rollout.batch_size:
        raise SystemExit(
            f"openrlhf_sagc: {PREFIX if rollout.sagc.enable else TAIL}enable does not work with "
            f"--rollout.vllm_generate_batch_size {rollout.vllm_generate_batch_size}: drop one of them"
        )
    estimator = args.algo.advantage.estimator
    if estimator not in GROUP_ESTIMATORS:
        raise SystemExit(
            f"openrlhf_sagc: --algo.advantage.estimator {estimator} has no groups whose size could be chosen: use "
            "group_norm, dr_grpo, rloo, reinforce_baseline or median"
        )
    if args.critic.freezing_steps >= 0:
        raise SystemExit(
            f"openrlhf_sagc: --critic.freezing_steps {args.critic.freezing_steps} holds the policy back while a critic "
            f"learns, and {estimator} has none: drop it"
        )
    if args.algo.advantage.gamma != 1:
        print(
            f"openrlhf_sagc: --algo.advantage.gamma {args.algo.advantage.gamma} is 1 for {estimator}, as in OpenRLHF"
        )


def check_batch(args: SimpleNamespace) -> None:
    """Group sizes, training batches and ranks share the samples of a step."""
    samples, product = samples_per_step(args)
    sizes = args.rollout.sagc.group_sizes
    wrong = [size for size in sizes if samples % size]
    if wrong and args.rollout.sagc.hold == "samples":
        fitting = [size for size in range(2, min(samples, max(sizes) * 2) + 1) if samples % size == 0]
        raise SystemExit(
            f"openrlhf_sagc: {PREFIX}group_sizes {words(wrong)} does not divide the {samples} samples of a step "
            f"({product}): sizes that do are {words(fitting)}"
        )
    if samples % args.train.batch_size:
        raise SystemExit(
            f"openrlhf_sagc: --train.batch_size {args.train.batch_size} does not divide the {samples} samples of a "
            f"step ({product}): use {samples} or a divisor of it"
        )
    ranks = data_parallel_actors(args)
    fewest = args.rollout.batch_size * min(sizes) if args.rollout.sagc.hold == "prompts" else samples
    if fewest < ranks:
        raise SystemExit(
            f"openrlhf_sagc: --rollout.batch_size {args.rollout.batch_size} x the smallest of {PREFIX}group_sizes, "
            f"{min(sizes)}, gives {fewest} samples to {ranks} data-parallel actors: raise either until there is one each"
        )
    if args.train.batch_size % ranks:
        raise SystemExit(
            f"openrlhf_sagc: {ranks} data-parallel actors do not divide --train.batch_size {args.train.batch_size}: "
            f"use a multiple of {ranks}"
        )
    micro_batch = args.train.micro_batch_size
    if not args.train.dynamic_batch_enable and args.train.batch_size % (micro_batch * ranks):
        raise SystemExit(
            f"openrlhf_sagc: --train.micro_batch_size {micro_batch} x {ranks} data-parallel actors does not divide "
            f"--train.batch_size {args.train.batch_size}: use a divisor of {args.train.batch_size // ranks}"
        )


def check_prompts(args: SimpleNamespace) -> None:
    """The dataset has the prompts of a step."""
    samples, product = samples_per_step(args)
    smallest = min(args.rollout.sagc.group_sizes)
    needed = samples // smallest if args.rollout.sagc.hold == "samples" else args.rollout.batch_size
    try:
        prompts = count_prompts(args)
    except Exception as error:
        raise SystemExit(
            f"openrlhf_sagc: --data.prompt_dataset {args.data.prompt_dataset} cannot be loaded: {one_line(error)}"
        ) from error
    if prompts < needed:
        raise SystemExit(
            f"openrlhf_sagc: --data.prompt_dataset {args.data.prompt_dataset} gives {prompts} prompts (at most "
            f"--data.max_samples {args.data.max_samples}), fewer than the {needed} of a step at group size {smallest} "
            f"({product}, {PREFIX}hold {args.rollout.sagc.hold}): use more prompts, a smaller --rollout.batch_size or a "
            "larger smallest group size"
        )


def check_reward(args: SimpleNamespace) -> None:
    """Ranges of --reward.*; a ValueError begins with the flag's name."""
    reward = args.reward
    if not 0 < reward.timeout < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, got {reward.timeout}")
    if reward.retries < 0:
        raise ValueError(f"retries must be at least 0, got {reward.retries}")
    if not 0 <= reward.max_failure_share <= 1:
        raise ValueError(f"max_failure_share must lie between 0 and 1, got {reward.max_failure_share}")


def data_parallel_actors(args: SimpleNamespace) -> int:
    """Ranks that share the samples of a step."""
    actors = args.actor.num_nodes * args.actor.num_gpus_per_node
    return max(actors // (args.ds.ring_attn_size * args.ds.tensor_parallel_size), 1)


def samples_per_step(args: SimpleNamespace) -> tuple[int, str]:
    """Samples of a step at the first group size, and the flags that say so."""
    batch_size, n_samples = args.rollout.batch_size, args.rollout.n_samples_per_prompt
    return batch_size * n_samples, f"--rollout.batch_size {batch_size} x --rollout.n_samples_per_prompt {n_samples}"


def count_prompts(args: SimpleNamespace) -> int:
    """Number of training prompts, counted the way OpenRLHF loads them."""
    from openrlhf.datasets.utils import blending_datasets

    quiet = SimpleNamespace(args=args, print=lambda *_: None, is_rank_0=lambda: False)
    data = blending_datasets(
        args.data.prompt_dataset,
        args.data.prompt_probs,
        quiet,
        args.train.seed,
        max_count=args.data.max_samples,
        dataset_split=args.data.prompt_split,
    )
    return min(args.data.max_samples, len(data))


def words(sizes: list[int]) -> str:
    return " ".join(map(str, sizes))


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())

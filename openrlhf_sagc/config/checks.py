"""What the flags ask of each other and of the run; arguments.py calls these checks.

The arguments are OpenRLHF's, nested by the dots in their names. A check ends the run with one line that names the flag,
the value and what would work.
"""

import math
import os

from openrlhf_sagc.advantages.estimators import ESTIMATORS
from openrlhf_sagc.config.batches import batch_flags
from openrlhf_sagc.config.layout import samples_per_step
from openrlhf_sagc.config.length_history import read_history
from openrlhf_sagc.config.refusal import (
    AGENT_TIMEOUT,
    FILTER,
    LENGTH_AWARE,
    LENGTH_HISTORY,
    MAX_AGE,
    POOL,
    PREFIX,
    REWARD,
    ROLLOUTS_FROM,
    ROLLOUTS_TO,
    TAIL,
    TRACE,
    USUAL_SIZE,
    refuse,
    words,
)
from openrlhf_sagc.config.settings import OLDEST, Settings, predicts_lengths, prompt_ratio

# `off` below is what a line adds where OpenRLHF itself runs the script: `off_command` of arguments.py.


def check_modes(args: Settings, off: str) -> None:
    """Modes of the run that the scheduler, tail batching or dynamic sampling cannot have."""
    refuse(
        not args.vllm.num_engines and not args.train.rollouts_from,
        f"--vllm.num_engines {args.vllm.num_engines} leaves nothing to generate with: use 1 or more",
    )
    _check_surplus(args)
    _check_tail_batching(args)
    _check_pool(args, off)
    _check_critic(args, off)
    _check_adapters(args)


def _check_adapters(args: Settings) -> None:
    """Engines get a layer's weight with what its LoRA adapters add, which the actors have to have as a whole."""
    ds = args.ds
    reasons = {
        f"--ds.zero_stage {ds.zero_stage}, which spreads each weight over the ranks: use --ds.zero_stage 2": ds.zero_stage
        == 3,
        f"--ds.tensor_parallel_size {ds.tensor_parallel_size}, which spreads weights over ranks: drop it": ds.tensor_parallel_size
        > 1,
        "--ds.load_in_4bit, whose weights no engine can take: drop it": ds.load_in_4bit,
        "--train.enable_ema, whose model has no adapters to average: drop it": args.train.enable_ema,
    }
    for reason, holds in reasons.items():
        refuse(ds.lora.rank > 0 and holds, f"--ds.lora.rank {ds.lora.rank} does not work with {reason}")


def _check_surplus(args: Settings) -> None:
    """Groups that run on into the next step."""
    if args.algo.dynamic_filtering_surplus != "keep":
        return
    refuse(
        args.vllm.enable_sleep,
        f"{FILTER}surplus keep does not work with --vllm.enable_sleep, which drops what vLLM is generating: use "
        f"{FILTER}surplus discard",
    )
    refuse(
        args.rollout.sagc.signal == "seconds" and not args.train.partial_rollout_enable,
        f"{FILTER}surplus keep does not work with {PREFIX}signal seconds: kept rollouts are paused while the policy trains, "
        f"and the pause would count as their seconds; use {FILTER}surplus discard or {PREFIX}signal tokens",
    )
    refuse(
        args.rollout.tail_batching.enable,
        f"{FILTER}surplus keep does not work with {TAIL}enable, which rolls out again what a step does not need: use "
        f"{FILTER}surplus discard",
    )


def _check_pool(args: Settings, off: str) -> None:
    """Prompts that stay in flight over steps, in an asynchronous run."""
    rollout, queue, sagc = args.rollout, args.train.async_queue_size, args.rollout.sagc
    prompts, batch, oldest = rollout.vllm_generate_batch_size, rollout.batch_size, rollout.max_age
    refuse(
        prompts < batch,
        f"{POOL} {prompts} leaves a step of --rollout.batch_size {batch} too few prompts in flight: use {batch} or more, or drop it",
    )
    refuse(
        prompts != batch and not rollout.pool,
        f"{POOL} {prompts} keeps prompts in flight while the weights change, which needs --train.async_enable "
        f"--train.partial_rollout_enable: drop it, or add them{off}",
    )
    if not rollout.pool:
        refuse(
            oldest != OLDEST,
            f"{MAX_AGE} {oldest} has no effect without prompts that stay in flight: add --train.async_enable "
            f"--train.partial_rollout_enable {POOL} {2 * batch}, or drop it{off}",
        )
        return
    refuse(
        oldest < queue,
        f"{MAX_AGE} {oldest} does not work with --train.async_queue_size {queue}, as the samples of a step wait for so many "
        f"updates: use {MAX_AGE} {queue} or more",
    )
    refuse(
        prompts > (oldest + 1) * batch,
        f"{POOL} {prompts} is more than steps of {batch} prompts train before groups are older than {MAX_AGE} {oldest}: use at "
        f"most {(oldest + 1) * batch}, or {MAX_AGE} {math.ceil(prompts / batch) - 1}",
    )
    refuse(
        len(set(sagc.group_sizes)) > 1 and (sagc.hold, sagc.objective) != ("prompts", "size"),
        f"{POOL} {prompts} has groups of several sizes in a step, which waits for no slow one: with {PREFIX}enable it needs "
        f"{PREFIX}hold prompts and {PREFIX}objective size",
    )


def _check_tail_batching(args: Settings) -> None:
    tail, cap, ratio = args.rollout.tail_batching, args.algo.dynamic_filtering_max_gen_batches, prompt_ratio(args)
    if not tail.enable:
        return
    refuse(
        args.train.partial_rollout_enable,
        f"{TAIL}enable does not work with --train.partial_rollout_enable: new weights under running rollouts would decide "
        "which prompts wait; drop one of them",
    )
    refuse(
        cap < ratio,
        f"{FILTER}max_gen_batches {cap} does not allow {TAIL}prompt_ratio {ratio}: use {math.ceil(ratio)} or more",
    )


def check_group(args: Settings, off: str) -> None:
    """Rewards are compared in groups of more than one; the line has all that the script needs, to be copied."""
    estimator, size, others = args.algo.advantage.estimator, args.rollout.n_samples_per_prompt, ""
    problem = f"--rollout.n_samples_per_prompt {size} makes no group to compare rewards in"
    if estimator not in ESTIMATORS:
        problem = f"--algo.advantage.estimator {estimator} has no groups for the scheduler"
        others = f" ({', '.join(ESTIMATORS)} have groups)"
    needed = flags_for_groups(args)
    refuse(needed, f"{problem}: use {needed}{off}{others}")


def flags_for_groups(args: Settings) -> str:
    """The flags that a run still needs whose rewards are to be compared in groups, and those to drop; empty if it has all.

    A step keeps its samples. OpenRLHF's own flags have no `rollout.sagc`: then the estimator may stay, and what only the
    scheduler cannot have.
    """
    rollout, freezing, has_scheduler = args.rollout, args.critic.freezing_steps, hasattr(args.rollout, "sagc")
    size, missing, dropped = _size_for_groups(args), [], []
    if has_scheduler and args.algo.advantage.estimator not in ESTIMATORS:
        missing.append("--algo.advantage.estimator group_norm")
    sizes = fitting_sizes(args, size) if has_scheduler else [size]
    if rollout.n_samples_per_prompt < 2:
        missing.append(f"--rollout.n_samples_per_prompt {size}")
        prompts = rollout.batch_size // size if rollout.batch_size % size == 0 else rollout.batch_size
        new_sizes = {"rollout.sagc.group_sizes": sizes} if has_scheduler else {}
        changes = {"rollout.n_samples_per_prompt": size, **new_sizes}
        missing += batch_flags(args, changes, prompts)
    if missing and has_scheduler:
        if rollout.vllm_generate_batch_size not in (None, rollout.batch_size) and not getattr(rollout, "pool", None):
            dropped.append(f"--rollout.vllm_generate_batch_size {rollout.vllm_generate_batch_size}")
        if freezing >= 0:
            dropped.append(f"--critic.freezing_steps {freezing}")
        if rollout.sagc.enable and sizes != sorted({*rollout.sagc.group_sizes}):
            missing.append(f"{PREFIX}group_sizes {words(sizes)}")
    return " ".join(missing) + (f" without {' '.join(dropped)}" if dropped else "")


def fitting_sizes(args: Settings, size: int) -> list[int]:
    """Of the run's group sizes those that a step at this size can have, and this one."""
    rollout = args.rollout
    samples = rollout.batch_size * rollout.n_samples_per_prompt
    if rollout.n_samples_per_prompt < 2 and rollout.batch_size % size:
        samples *= size  # the number of prompts stays
    fits = [other for other in rollout.sagc.group_sizes if rollout.sagc.hold == "prompts" or samples % other == 0]
    return sorted({size, *fits})


def _size_for_groups(args: Settings) -> int:
    """The run's group size; where that is no group, one that would work."""
    if args.rollout.n_samples_per_prompt > 1:
        return args.rollout.n_samples_per_prompt
    sagc = getattr(args.rollout, "sagc", None)  # OpenRLHF's own flags have none
    sizes = [size for size in sagc.group_sizes if size > 1] if sagc and sagc.enable else []
    return USUAL_SIZE if USUAL_SIZE in sizes or not sizes else min(sizes)


def _check_critic(args: Settings, off: str) -> None:
    """What only a critic needs."""
    estimator, freezing, gamma = args.algo.advantage.estimator, args.critic.freezing_steps, args.algo.advantage.gamma
    refuse(
        freezing >= 0,
        f"--critic.freezing_steps {freezing} trains only a critic at first, and {estimator} has no critic: "
        f"drop it{off}",
    )
    if gamma != 1:
        print(f"openrlhf_sagc: --algo.advantage.gamma {gamma} has no effect: {estimator} uses 1, as in OpenRLHF")


def check_prompts(args: Settings, prompts: int, off: str) -> None:
    """The dataset, which has so many prompts, has those of a step."""
    samples, product = samples_per_step(args)
    smallest, hold, dataset = min(args.rollout.sagc.group_sizes), args.rollout.sagc.hold, args.data.prompt_dataset
    needed = samples // smallest if hold == "samples" else args.rollout.batch_size
    given = (
        f"--data.prompt_dataset {dataset} gives {prompts} prompts (at most --data.max_samples {args.data.max_samples})"
    )
    refuse(
        prompts < needed and not args.rollout.sagc.enable,
        f"{given}, fewer than the {needed} of a step: use more prompts or --rollout.batch_size {max(prompts, 1)} or less{off}",
    )
    refuse(
        prompts < needed,
        f"{given}, fewer than the {needed} of a step at group size {smallest} ({product}, {PREFIX}hold {hold}): use more prompts, "
        f"a smaller --rollout.batch_size or a larger smallest group size{off}",
    )


def check_reward(args: Settings) -> None:
    """Ranges of --reward.*.

    Raises:
        ValueError: a flag is out of its range; the message begins with its name.
    """
    reward = args.reward
    if not 0 < reward.timeout < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, got {reward.timeout}")
    if reward.retries < 0:
        raise ValueError(f"retries must be at least 0, got {reward.retries}")
    if not 0 <= reward.max_failure_share <= 1:
        raise ValueError(f"max_failure_share must lie between 0 and 1, got {reward.max_failure_share}")


def check_history(args: Settings) -> None:
    """The lengths of an earlier run are used, and can be read."""
    path = args.rollout.length_history
    if path is None:
        return
    refuse(
        not predicts_lengths(args),
        f"{LENGTH_HISTORY} {path} has no effect: add {TAIL}enable with {TAIL}method auto or sort, or {LENGTH_AWARE}",
    )
    try:
        read_history(path)
    except ValueError as error:
        refuse(True, f"{LENGTH_HISTORY} {error}")


def check_trace(path: str | None) -> None:
    """The trace is a plain file, or none yet."""
    if path is None:
        return
    refuse(
        not os.path.basename(path) or os.path.isdir(path),
        f"{TRACE} {path} is a folder: give a file, such as {os.path.join(path, 'run.csv')}",
    )
    not_plain = f"{TRACE} {path} is not a plain file: give one, or drop the flag for no trace"
    refuse(os.path.exists(path) and not os.path.isfile(path), not_plain)


def check_kept_rollouts(args: Settings) -> None:
    """What kept steps cannot have, and a run that trains them."""
    images, to, back = args.data.max_images_per_prompt, args.train.rollouts_to, args.train.rollouts_from
    flag = f"{ROLLOUTS_TO} {to}" if to else f"{ROLLOUTS_FROM} {back}"
    refuse(to and back, f"{flag} has nothing to keep with {ROLLOUTS_FROM} {back}: drop one of them")
    refuse((to or back) and images, f"{flag} keeps no images: drop it, or --data.max_images_per_prompt {images}")
    refuse(
        back and args.ckpt.load_enable,
        f"{flag} begins with a model, not with a checkpoint: drop --ckpt.load_enable",
    )


def check_agent(args: Settings) -> None:
    """The deadline of an agent, which has to be there."""
    timeout = args.rollout.agent_timeout
    if timeout is None:
        return
    refuse(
        not 0 < timeout < math.inf,
        f"{AGENT_TIMEOUT} must be a number of seconds above 0, got {timeout}; without the flag there is no limit",
    )
    refuse(
        not args.train.agent_func_path,
        f"{AGENT_TIMEOUT} {timeout:g} has no effect without --train.agent_func_path: use {REWARD}timeout for a reward "
        "function or server",
    )

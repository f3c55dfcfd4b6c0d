"""OpenRLHF's own checks of its flags, whose assertions and crashes become one line with today's names of the flags."""

import argparse
import re
from collections.abc import Callable
from types import SimpleNamespace

from openrlhf_sagc.config.attention import name_kernel
from openrlhf_sagc.config.batches import batch_flags
from openrlhf_sagc.config.checks import flags_for_groups
from openrlhf_sagc.config.engine_args import check_engine_args
from openrlhf_sagc.config.late_flags import DIVISORS, NO_REWARD, no_reward, refuse_values
from openrlhf_sagc.config.layout import data_parallel_actors, samples_per_step
from openrlhf_sagc.config.refusal import refusal, words
from openrlhf_sagc.config.settings import NotGiven, Settings

# Old names that OpenRLHF's messages still have, and the flags of today.
TODAY = {
    "actor_num_gpus_per_node": "--actor.num_gpus_per_node",
    "actor_num_nodes": "--actor.num_nodes",
    "advantage_estimator": "--algo.advantage.estimator",
    "agent_func_path": "--train.agent_func_path",
    "attn_implementation": "--ds.attn_implementation",
    "colocate_all_models": "--train.colocate_all",
    "eval_dataset": "--eval.dataset",
    "micro_rollout_batch_size": "--rollout.micro_batch_size",
    "n_samples_per_prompt": "--rollout.n_samples_per_prompt",
    "packing_samples": "--ds.packing_samples",
    "remote_rm_url": "--reward.remote_url",
    "reward_clip_range": "--reward.clip_range",
    "ring_attn_size": "--ds.ring_attn_size",
    "rollout_batch_size": "--rollout.batch_size",
    "train_batch_size": "--train.batch_size",
    "use_dynamic_batch": "--train.dynamic_batch_enable",
    "vllm_num_engines": "--vllm.num_engines",
    "vllm_tensor_parallel_size": "--vllm.tensor_parallel_size",
}
_OLD = re.compile(rf"`?(?<![\w.])(?:--)?({'|'.join(sorted(TODAY, key=len, reverse=True))})(?![\w.])`?")


def _of_group(args: Settings) -> str:
    return (
        f"--rollout.n_samples_per_prompt {args.rollout.n_samples_per_prompt} makes no group to compare rewards in: use "
        f"{flags_for_groups(args)}"
    )


def _of_images(args: Settings) -> str:
    """Images and a critic."""
    needed = flags_for_groups(args)
    if "--algo.advantage.estimator" not in needed:  # OpenRLHF's own flags
        needed = f"--algo.advantage.estimator group_norm {needed}".strip()
    return (
        f"--data.max_images_per_prompt {args.data.max_images_per_prompt} does not work with a critic, which "
        f"--algo.advantage.estimator gae has: use {needed}"
    )


def _of_filter(args: Settings) -> str:
    needed = flags_for_groups(args)
    more = f"; it also needs {needed}" if needed else ""
    return (
        "--algo.dynamic_filtering_enable needs rewards with the responses, from --reward.remote_url or "
        f"--train.agent_func_path: give one of them, or drop it for the reward model of --reward.model_name_or_path{more}"
    )


def _of_range(args: Settings) -> str:
    low, high = args.algo.dynamic_filtering_range
    return f"--algo.dynamic_filtering_range {low:g} {high:g}: use the lower number first"


def _of_micro_batches(args: Settings) -> str:
    (samples, product), ranks = samples_per_step(args), data_parallel_actors(args)
    size = args.rollout.micro_batch_size
    problem = f"--rollout.micro_batch_size {size} cuts the {samples} samples of a step ({product}) into too few batches for the"
    needed = batch_flags(args, {"rollout.micro_batch_size": 1}) if samples < ranks else []
    smaller = ["--rollout.micro_batch_size 1"] * (size > 1)
    advice = (
        f"use at most {samples // ranks}"
        if samples >= ranks
        else f"use {' '.join(needed + smaller)}" if needed else "use a larger --rollout.batch_size, or fewer GPUs"
    )
    return f"{problem} {ranks} data-parallel ranks of the actor: {advice}"


def _of_packing(args: Settings) -> str:
    given = "--train.dynamic_batch_enable" if args.train.dynamic_batch_enable else "--ds.packing_samples"
    return f"{given} packs samples, which works only with vLLM: use --vllm.num_engines 1 or more"


# What an assertion says -> the line instead of it.
LINES: dict[str, Callable[[Settings], str]] = {
    r"is_correction_threshold takes": lambda args: (
        f"--algo.advantage.is_correction_threshold {words(args.algo.advantage.is_correction_threshold)}: use LOW HIGH, as "
        "0.5 5, or only HIGH"
    ),
    r"requires n_samples_per_prompt > 1|n_samples_per_prompt must be greater than 1": _of_group,
    r"VLM training does not support critic": _of_images,
    r"VLM training does not support --packing_samples": lambda args: (
        f"--data.max_images_per_prompt {args.data.max_images_per_prompt} does not work with --ds.packing_samples: drop it, "
        "and --train.dynamic_batch_enable, which switches it on"
    ),
    r"Only support `--packing_samples` with vLLM": _of_packing,
    r"Async RLHF is not supported with --vllm.enable_sleep": lambda args: (
        "--train.async_enable does not work with --vllm.enable_sleep, since engines generate while the policy trains: drop "
        "--vllm.enable_sleep, and give the engines GPUs of their own"
    ),
    r"partial_rollout_enable requires": lambda args: "--train.partial_rollout_enable needs --train.async_enable: add it",
    r"`--eval_dataset` requires": lambda args: (
        "--eval.dataset needs rewards with the responses, from --reward.remote_url or --train.agent_func_path: give one of "
        "them, or drop it"
    ),
    r"vllm_generate_batch_size > ": lambda args: (
        f"--rollout.vllm_generate_batch_size {args.rollout.vllm_generate_batch_size} above --rollout.batch_size "
        f"{args.rollout.batch_size} needs --train.async_enable --train.partial_rollout_enable: drop it, or add them"
    ),
    r"reward_clip_range\[0\] must be less": _of_range,
    r"must be specified when using dynamic filtering": _of_filter,
    r"number of sample batches must be greater": _of_micro_batches,
}


def validated(validate_args: Callable, parsed: argparse.Namespace) -> SimpleNamespace:
    """OpenRLHF's own checks of the flags.

    Args:
        validate_args: OpenRLHF's function of this name.
        parsed: what its parser gives.

    Returns:
        The arguments that it returns. `rollout.pool` is --rollout.vllm_generate_batch_size where it was given for a pool, whose
        run corrects by importance if no flag says how. `data.dropped_template` is a --data.input_template that it does not use, and
        `ds.attn_implementation` a kernel where flash-attn is not installed.

    Raises:
        SystemExit: what its assertion or crash comes to, in one line.
    """
    from openrlhf.utils.config import hierarchize

    partial = getattr(parsed, "train.partial_rollout_enable", False)
    pool = partial and getattr(parsed, "rollout.vllm_generate_batch_size") or None
    if pool and isinstance(getattr(parsed, "algo.advantage.is_correction_level"), NotGiven):
        setattr(parsed, "algo.advantage.is_correction_level", NotGiven("token"))
    corrects = getattr(parsed, "algo.advantage.is_correction_level", "off") != "off"
    check_engine_args(getattr(parsed, "vllm.engine_args"), corrects)
    given = getattr(parsed, "data.input_template")
    try:
        args = validate_args(parsed)
        _refuse_unequal_gpus(args)
    except (AssertionError, AttributeError, ImportError, TypeError, ZeroDivisionError) as error:
        raise _explained(error, Settings.of(hierarchize(parsed))) from error
    if pool:
        args.rollout.pool = pool
    args.data.dropped_template = given if args.data.input_template is None else None
    name_kernel(args)
    return args


def _explained(error: Exception, args: Settings) -> SystemExit:
    """The end of a run whose flags OpenRLHF has refused with this error."""
    refuse_values(args, DIVISORS)
    if isinstance(error, AttributeError) and no_reward(args):
        return refusal(NO_REWARD)
    if isinstance(error, TypeError) and args.vllm.num_engines is None:
        return refusal(_of_packing(args))
    message = " ".join(str(error).split())
    for pattern, line in LINES.items():
        if re.search(pattern, message):
            return refusal(line(args))
    return refusal(in_todays_names(message) or f"OpenRLHF refuses the flags: {type(error).__name__}")


def in_todays_names(message: str) -> str:
    """The message with the flags' names of today."""
    return _OLD.sub(lambda match: TODAY[match[1]], message)


def _refuse_unequal_gpus(args: SimpleNamespace) -> None:
    """Models on the same GPUs need as many; OpenRLHF asserts it once Ray has started. The line has all that is to change."""
    problems: list[str] = []
    changes: dict[str, int] = {}
    train, actor, ref, critic, reward = args.train, args.actor, args.ref, args.critic, args.reward
    gpus = actor.num_nodes * actor.num_gpus_per_node
    tensor_parallel, engines = args.vllm.tensor_parallel_size, args.vllm.num_engines
    if (
        (train.colocate_actor_ref or train.colocate_all)
        and args.algo.kl.init_coef > 0
        and (actor.num_nodes, actor.num_gpus_per_node) != (ref.num_nodes, ref.num_gpus_per_node)
    ):
        flag = "--train.colocate_all" if train.colocate_all else "--train.colocate_actor_ref"
        problems.append(f"{flag} puts actor and reference on the same GPUs, and the actor has {gpus}")
        changes |= {"ref.num_nodes": actor.num_nodes, "ref.num_gpus_per_node": actor.num_gpus_per_node}
    together = train.colocate_all and not train.async_enable and engines is not None and engines > 0
    if together and gpus != engines * tensor_parallel:
        ranks = max((part for part in range(1, tensor_parallel + 1) if gpus % part == 0), default=1)
        changes |= {"vllm.tensor_parallel_size": ranks} if ranks != tensor_parallel else {}
        changes["vllm.num_engines"] = gpus // ranks
        problems.append(
            f"--train.colocate_all puts actor and engines on the same GPUs, and the actor has {gpus} (--actor.num_nodes x "
            f"--actor.num_gpus_per_node), the engines {engines * tensor_parallel} (--vllm.num_engines x "
            f"--vllm.tensor_parallel_size)"
        )
    if (
        critic.model_name_or_path
        and train.colocate_critic_reward
        and (critic.num_nodes, critic.num_gpus_per_node) != (reward.num_nodes, reward.num_gpus_per_node)
    ):
        problems.append("--train.colocate_critic_reward puts critic and reward model on the same GPUs")
        changes |= {"reward.num_nodes": critic.num_nodes, "reward.num_gpus_per_node": critic.num_gpus_per_node}
    if problems:
        flags = [f"--{name} {number}" for name, number in changes.items()] + batch_flags(args, changes)
        raise refusal(f"{problems[0]}: use {' '.join(flags)}")

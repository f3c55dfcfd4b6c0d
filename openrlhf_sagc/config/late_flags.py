"""Values of OpenRLHF's flags that its parser takes, and that would end the run in a step or train nonsense.

Each is a row of a table: the flag, what its value has to be, and when it is read at all. None means that a flag was not
given. -1 switches `--eval.steps` and `--ckpt.save_steps` off.
"""

import math
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from openrlhf_sagc.config.refusal import refuse, words

Arguments = SimpleNamespace


class Range(NamedTuple):
    """What a flag's value has to be."""

    fits: Callable[[Any], bool]
    words: str  # what would work


def _between(low: float, high: float, words: str) -> Range:
    return Range(lambda value: low <= value <= high, words)  # NaN fits nowhere


WHOLE = Range(lambda value: value >= 1, "use 1 or more")
NOT_NEGATIVE = Range(lambda value: 0 <= value < math.inf, "use 0 or more")
POSITIVE = Range(lambda value: 0 < value < math.inf, "use a number above 0")
SHARE = _between(0, 1, "use a number from 0 to 1")
STEPS = Range(lambda value: value == -1 or value >= 1, "use 1 or more, or -1 for never")
BETAS = Range(lambda betas: all(0 <= beta < 1 for beta in betas), "use two numbers from 0 to below 1")
RISING = Range(lambda pair: pair[0] < pair[1], "use the lower number first")
CLIPS = Range(lambda pair: 0 <= pair[0] <= 1 and 0 <= pair[1] < math.inf, "use two numbers of 0 or more, as 0.2 0.28")


def _always(args: Arguments) -> bool:
    return True


def _has_reference(args: Arguments) -> bool:
    return args.algo.kl.init_coef > 0


def _has_reward_model(args: Arguments) -> bool:
    return not args.reward.remote_url and not args.train.agent_func_path


def _evaluates(args: Arguments) -> bool:
    return bool(args.eval.dataset)


def _is_dynamic(args: Arguments) -> bool:
    return args.train.dynamic_batch_enable


# What OpenRLHF itself divides by, or compares, while it checks the flags: these fail under every command.
DIVISORS = {
    "actor.num_nodes": (WHOLE, _always),
    "actor.num_gpus_per_node": (WHOLE, _always),
    "ds.ring_attn_size": (WHOLE, _always),
    "ds.tensor_parallel_size": (WHOLE, _always),
    "rollout.batch_size": (WHOLE, _always),
    "rollout.n_samples_per_prompt": (WHOLE, _always),
    "rollout.micro_batch_size": (WHOLE, _always),
}
TABLE = DIVISORS | {
    "vllm.num_engines": (Range(lambda value: value >= 0, "use 1 or more"), _always),  # 0 has a line of its own
    "vllm.tensor_parallel_size": (WHOLE, _always),
    "vllm.gpu_memory_utilization": (_between(1e-9, 1, "use a share of the GPU's memory, as 0.9"), _always),
    "ref.num_nodes": (WHOLE, _has_reference),
    "ref.num_gpus_per_node": (WHOLE, _has_reference),
    "reward.num_nodes": (WHOLE, _has_reward_model),
    "reward.num_gpus_per_node": (WHOLE, _has_reward_model),
    "train.batch_size": (WHOLE, _always),
    "train.micro_batch_size": (WHOLE, _always),
    "train.num_episodes": (WHOLE, _always),
    "train.max_epochs": (WHOLE, _always),
    "train.max_tokens_per_gpu": (WHOLE, _is_dynamic),
    "rollout.max_tokens_per_gpu": (WHOLE, _is_dynamic),
    "train.async_queue_size": (WHOLE, lambda args: args.train.async_enable),
    "train.seed": (_between(0, 2**32 - 1, "use 0 or more"), _always),
    "train.ema_beta": (SHARE, lambda args: args.train.enable_ema),
    "data.max_len": (WHOLE, _always),
    "data.max_samples": (WHOLE, _always),
    "data.dataloader_num_workers": (NOT_NEGATIVE, _always),
    "data.max_images_per_prompt": (NOT_NEGATIVE, _always),
    "rollout.max_new_tokens": (WHOLE, _always),
    "rollout.temperature": (
        POSITIVE,
        _always,
    ),  # at 0 the responses of a group are equal, and logits are divided by it
    "rollout.top_p": (_between(1e-9, 1, "use a number above 0 and at most 1"), _always),
    "eval.steps": (STEPS, _always),
    "eval.temperature": (NOT_NEGATIVE, _evaluates),
    "eval.n_samples_per_prompt": (WHOLE, _evaluates),
    "ckpt.save_steps": (STEPS, _always),
    "ckpt.grace_seconds": (NOT_NEGATIVE, _always),
    "ckpt.max_num": (WHOLE, lambda args: args.ckpt.save_steps > 0),
    "ckpt.max_mem": (Range(lambda value: value > 0, "use GB above 0"), lambda args: args.ckpt.save_steps > 0),
    "logger.logging_steps": (Range(lambda value: value != 0, "use 1 or more"), _always),
    "ds.zero_stage": (_between(0, 3, "use 0, 1, 2 or 3"), _always),
    "ds.zpg": (WHOLE, _always),
    "ds.ring_attn_head_stride": (WHOLE, _always),
    "ds.lora.rank": (NOT_NEGATIVE, _always),
    "ds.lora.dropout": (_between(0, 0.999, "use a number from 0 to below 1"), _always),
    "ds.grad_accum_dtype": (
        Range(lambda value: value in ("fp32", "fp16", "bf16"), "use fp32, fp16 or bf16, or drop it"),
        _always,
    ),
    "actor.eps_clip_low_high": (CLIPS, _always),
    "actor.dual_clip": (Range(lambda value: 1 < value < math.inf, "use a number above 1, as 3"), _always),
    "actor.adam.lr": (NOT_NEGATIVE, _always),
    "actor.muon.lr": (NOT_NEGATIVE, lambda args: args.actor.optim == "muon"),
    "actor.adam.betas": (BETAS, _always),
    "actor.adam.eps": (NOT_NEGATIVE, _always),
    "actor.adam.weight_decay": (NOT_NEGATIVE, _always),
    "actor.max_norm": (NOT_NEGATIVE, _always),
    "actor.lr_warmup_ratio": (SHARE, _always),
    "actor.min_lr_ratio": (SHARE, _always),
    "actor.lr_scheduler": (
        Range(lambda value: _is_scheduler(value), "use constant_with_warmup or cosine_with_min_lr"),
        _always,
    ),
    "algo.kl.init_coef": (NOT_NEGATIVE, _always),
    "algo.kl.target": (POSITIVE, _always),
    "algo.kl.horizon": (WHOLE, lambda args: args.algo.kl.target),
    "algo.advantage.is_correction_threshold": (
        Range(lambda pair: 0 <= pair[0] <= pair[1], "use LOW HIGH, as 0.5 5, or only HIGH"),
        lambda args: args.algo.advantage.is_correction_level != "off",
    ),
    "reward.clip_range": (RISING, _always),
    "reward.overlong_buffer_len": (NOT_NEGATIVE, _always),
    "reward.stop_properly_penalty_coef": (
        Range(lambda value: -math.inf < value <= 1, "use a factor from 0 to 1, or a negative reward"),
        _always,
    ),
}


def refuse_values(args: Arguments, table: dict[str, tuple[Range, Callable]] | None = None) -> None:
    """End the run with a line on the first flag whose value does not fit; all of OpenRLHF's flags unless a table is given.

    Raises:
        SystemExit: the line.
    """
    for name, (range_, applies) in (TABLE if table is None else table).items():
        value = operator.attrgetter(name)(args)
        shown = words(value) if isinstance(value, list | tuple) else value
        refuse(value is not None and applies(args) and not range_.fits(value), f"--{name} {shown}: {range_.words}")


def check_late_flags(args: Arguments) -> None:
    """End the run on flags that would end it in a step; print what does nothing.

    Args:
        args: OpenRLHF's, after its own checks.

    Raises:
        SystemExit: the line.
    """
    refuse_values(args)
    for problem in _problems(args):
        refuse(True, problem)
    if args.eval.dataset and args.eval.steps == -1:
        print(
            "openrlhf_sagc: --eval.dataset is never used without --eval.steps: give the steps between two evaluations"
        )
    if not args.eval.dataset and args.eval.steps != -1:
        print(f"openrlhf_sagc: --eval.steps {args.eval.steps} has no effect without --eval.dataset")


def _problems(args: Arguments) -> Iterator[str]:
    """Flags that do not fit each other."""
    if no_reward(args):
        yield NO_REWARD
    if not args.actor.model_name_or_path:
        yield "--actor.model_name_or_path is not given: name the model to train, a folder or a name on the hub"
    yield from _lengths(args)
    yield from _correction(args)
    if args.ds.tensor_parallel_size > 1 and args.ds.param_dtype != "bf16":
        yield f"--ds.tensor_parallel_size above 1 needs --ds.param_dtype bf16, not {args.ds.param_dtype}"
    if args.ds.load_in_4bit and args.ds.param_dtype != "bf16":
        yield f"--ds.load_in_4bit needs --ds.param_dtype bf16, not {args.ds.param_dtype}"
    gpus, shared = (
        args.actor.num_nodes * args.actor.num_gpus_per_node,
        args.ds.ring_attn_size * args.ds.tensor_parallel_size,
    )
    if gpus % shared:
        yield (
            f"--ds.ring_attn_size {args.ds.ring_attn_size} x --ds.tensor_parallel_size {args.ds.tensor_parallel_size} does "
            f"not divide the actor's {gpus} GPUs (--actor.num_nodes x --actor.num_gpus_per_node): use divisors of {gpus}"
        )


NO_REWARD = (
    "no reward is given: add --reward.remote_url with a .py file or an address, --train.agent_func_path, or "
    "--reward.model_name_or_path"
)


def no_reward(args: Arguments) -> bool:
    """Whether nothing would score the responses."""
    return not (args.reward.remote_url or args.train.agent_func_path or args.reward.model_name_or_path)


def _lengths(args: Arguments) -> Iterator[str]:
    longest, new = args.data.max_len, args.rollout.max_new_tokens
    if new is not None and new >= longest:
        yield (
            f"--rollout.max_new_tokens {new} leaves none of --data.max_len {longest} (prompt and response) to the prompt, whose "
            f"beginning would be cut off: use a --data.max_len above {new} plus the tokens of your longest prompt"
        )
    buffer = args.reward.overlong_buffer_len
    if buffer is not None and buffer > (new or longest):
        flag = f"--rollout.max_new_tokens {new}" if new else f"--data.max_len {longest}"
        yield f"--reward.overlong_buffer_len {buffer:g} is above {flag}: use at most {new or longest}"


def _correction(args: Arguments) -> Iterator[str]:
    """What OpenRLHF's loss refuses when the actors make it."""
    flags, name = args.algo.advantage, "--algo.advantage.is_correction_"
    level, mode, gating = flags.is_correction_level, flags.is_correction_mode, flags.is_correction_gating
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        yield f"{name}mode clip needs {name}level token and {name}gating ratio, not {level} and {gating}: use {name}mode mask"
    low, high = flags.is_correction_threshold
    if gating != "ratio" and level != "off" and low > 0:
        yield f"{name}gating {gating} has only an upper bound: use one number for {name}threshold, not {low:g} {high:g}"


def _is_scheduler(name: str) -> bool:
    """Whether it is one that OpenRLHF can make, without flags that it does not have."""
    if name in ("constant", "constant_with_warmup", "cosine", "cosine_with_min_lr", "linear"):
        return True  # without an import
    from transformers.trainer_utils import SchedulerType

    needs_more = ("reduce_lr_on_plateau", "warmup_stable_decay", "greedy", "cosine_warmup_with_min_lr")
    return name in {kind.value for kind in SchedulerType} - set(needs_more)

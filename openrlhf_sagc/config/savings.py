"""What spares a training step time without changing its gradient: fewer forward passes, no padding, no wait for all groups.

Each function gives the reason why this run cannot spare it, for the line at its start; empty if it can.
"""

from types import SimpleNamespace

from openrlhf_sagc.advantages.estimators import estimator_named
from openrlhf_sagc.config.layout import data_parallel_actors, forward_ranks
from openrlhf_sagc.config.refusal import FILTER

LOG_PROBS = "--train.old_log_probs"
MICRO_BATCHES = "--train.micro_batches"
STREAM = "--train.stream"


def why_forward(args: SimpleNamespace) -> str:
    """Why a forward pass of all samples before the training makes the old log-probabilities.

    Training's own forward pass gives the same ones in a rollout's first optimizer step.
    """
    algo, train = args.algo, args.train
    reasons = {
        f"{LOG_PROBS} {train.old_log_probs} asks for it": train.old_log_probs == "forward",
        f"--train.max_epochs {train.max_epochs} trains on a rollout again": train.max_epochs > 1,
        _why_not_in_parts(args): True,
        "the KL in the reward needs a forward pass": algo.kl.init_coef > 0 and not algo.kl.use_loss,
        "--algo.kl.unbiased_gradient needs a forward pass": algo.kl.init_coef > 0 and algo.kl.unbiased_gradient,
    }
    return next((reason for reason, holds in reasons.items() if reason and holds), "")


def optimizer_steps(args: SimpleNamespace) -> int:
    """Optimizer steps of a rollout of the usual size."""
    return max(args.rollout.batch_size * args.rollout.n_samples_per_prompt // args.train.batch_size, 1)


def _why_not_in_parts(args: SimpleNamespace) -> str:
    """Why the actors cannot train a rollout's optimizer steps one by one; empty if they can, or if there is only one."""
    train, ds, steps = args.train, args.ds, optimizer_steps(args)
    reasons = {
        "--ds.packing_samples": ds.packing_samples,
        "--train.dynamic_batch_enable": train.dynamic_batch_enable,
        "--train.enable_ema": train.enable_ema,
        "a ring or tensor parallelism": max(ds.ring_attn_size, ds.tensor_parallel_size) > 1,
    }
    kept = next((reason for reason, holds in reasons.items() if holds), "")
    if steps == 1 or not kept:
        return ""
    several = f"--train.batch_size {train.batch_size} makes {steps} optimizer steps of a rollout"
    return f"{several}, which cannot be trained one by one with {kept}"


def why_shuffled(args: SimpleNamespace) -> str:
    """Why micro-batches are not made of samples of like lengths."""
    train = args.train
    reasons = {
        f"{MICRO_BATCHES} {train.micro_batches} asks for it": train.micro_batches == "shuffled",
        "--ds.packing_samples leaves no padding": args.ds.packing_samples,
        "--train.dynamic_batch_enable makes micro-batches by their tokens": train.dynamic_batch_enable,
        f"--actor.aux_loss_coef {args.actor.aux_loss_coef:g} is a loss of each micro-batch": args.actor.aux_loss_coef
        > 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def why_not_streamed(args: SimpleNamespace) -> str:
    """Why no group is trained while others still decode."""
    train, ds, actor, estimator = args.train, args.ds, args.actor, args.algo.advantage.estimator
    forward = why_forward(args)
    reasons = {
        f"{STREAM} {train.stream} asks for it": train.stream == "off",
        "--train.rollouts_to and --train.rollouts_from have whole steps": bool(
            train.rollouts_to or train.rollouts_from
        ),
        "--train.colocate_all puts the engines on the actors' devices": train.colocate_all,
        "--vllm.enable_sleep and --ds.enable_sleep let engines and actors take turns": args.vllm.enable_sleep
        or ds.enable_sleep,
        "--train.async_enable trains beside the rollouts already": train.async_enable,
        forward: bool(forward),
        "--ds.packing_samples plans its micro-batches with all samples": ds.packing_samples,
        "--train.dynamic_batch_enable plans its micro-batches with all samples": train.dynamic_batch_enable,
        f"--algo.advantage.estimator {estimator} whitens over all samples": estimator_named(estimator).whitens,
        f"--actor.aux_loss_coef {actor.aux_loss_coef:g} is a loss of each micro-batch": actor.aux_loss_coef > 0,
        f"--actor.loss_agg_mode {actor.loss_agg_mode} is not a mean over tokens": actor.loss_agg_mode != "token-mean",
        f"--actor.policy_loss_type {actor.policy_loss_type} is not a mean over tokens": actor.policy_loss_type
        == "gspo",
        "--train.enable_ema is not tried with it": train.enable_ema,
        f"--actor.optim {actor.optim} has no loss scale": actor.optim != "adam",
        "--ds.param_dtype fp16 has a loss scale of its own": ds.param_dtype == "fp16",
        "--ds.zero_stage 0 has no loss scale": ds.zero_stage == 0,
        "--ds.grad_accum_dtype fp32 under ZeRO 1 has no loss scale": ds.zero_stage == 1
        and ds.param_dtype == "bf16"
        and ds.grad_accum_dtype == "fp32",
        "ranks of a ring or of tensor parallelism share their samples": max(ds.ring_attn_size, ds.tensor_parallel_size)
        > 1,
        "the reference or the reward model has a number of ranks that does not divide the actor's": any(
            data_parallel_actors(args) % ranks for ranks in forward_ranks(args).values()
        ),
        "--train.colocate_actor_ref puts the reference model on the actors' devices": train.colocate_actor_ref
        and args.algo.kl.init_coef > 0,
        f"{FILTER}surplus keep trains groups of the step before first": args.algo.dynamic_filtering_surplus == "keep",
        f"{FILTER}at_cap keep may end a step early": args.algo.dynamic_filtering_at_cap == "keep",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def describe_savings(args: SimpleNamespace) -> str:
    """The start-up line: for each saving, whether it applies, or why not."""
    forward, shuffled, not_streamed = why_forward(args), why_shuffled(args), why_not_streamed(args)
    log_probs = f"a forward pass makes the old log-probabilities ({forward})"
    micro_batches = f"micro-batches are shuffled ({shuffled})"
    first = " of a rollout's first optimizer step" if optimizer_steps(args) > 1 else ""
    at_once = f"training waits for all groups ({not_streamed})"
    return "; ".join(
        [
            log_probs if forward else f"training's own forward pass gives the old log-probabilities{first}",
            micro_batches if shuffled else "micro-batches have samples of like lengths",
            at_once if not_streamed else "groups are trained while others still decode",
        ]
    )

"""What a training step can leave out without changing its gradient: a forward pass, and padding.

Each function gives the reason why this run keeps what could be left out, for the line at its start; empty if it does not.
"""

from types import SimpleNamespace

LOG_PROBS = "--train.old_log_probs"
MICRO_BATCHES = "--train.micro_batches"


def why_forward(args: SimpleNamespace) -> str:
    """Why a forward pass before the training makes the old log-probabilities.

    Where a rollout has one optimizer step, training's own forward pass gives the same ones.
    """
    algo, train = args.algo, args.train
    steps = args.rollout.batch_size * args.rollout.n_samples_per_prompt // train.batch_size
    reasons = {
        f"{LOG_PROBS} {train.old_log_probs} asks for it": train.old_log_probs == "forward",
        f"--train.max_epochs {train.max_epochs} trains on a rollout again": train.max_epochs > 1,
        f"--train.batch_size {train.batch_size} makes {steps} optimizer steps of a rollout": steps > 1,
        "the KL in the reward needs it": algo.kl.init_coef > 0 and not algo.kl.use_loss,
        "--algo.kl.unbiased_gradient needs it": algo.kl.init_coef > 0 and algo.kl.unbiased_gradient,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


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


def describe_savings(args: SimpleNamespace) -> str:
    """Both in words, for the start of a run."""
    forward, shuffled = why_forward(args), why_shuffled(args)
    log_probs = f"a forward pass makes the old log-probabilities ({forward})"
    micro_batches = f"micro-batches are shuffled ({shuffled})"
    return "; ".join(
        [
            log_probs if forward else "training's own forward pass gives the old log-probabilities",
            micro_batches if shuffled else "micro-batches have samples of like lengths",
        ]
    )

"""What a simulated training step leaves out: training's flags of a faster step, decided by training's own rules."""

import argparse
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

from lib.simulation.flags import nested, training_flags

from openrlhf_sagc.config.savings import why_forward, why_not_streamed, why_shuffled

# OpenRLHF's flags that decide with the package's own whether a part is left out. These values forbid none.
FLAGS = {
    "--train.max_epochs": 1,
    "--train.dynamic_batch_enable": False,
    "--train.async_enable": False,
    "--train.enable_ema": False,
    "--train.colocate_actor_ref": False,
    "--train.agent_func_path": None,
    "--vllm.enable_sleep": False,
    "--ds.enable_sleep": False,
    "--ds.param_dtype": "bf16",
    "--ds.zero_stage": 3,
    "--ds.grad_accum_dtype": None,
    "--ds.ring_attn_size": 1,
    "--ds.tensor_parallel_size": 1,
    "--algo.kl.init_coef": 0.0,
    "--algo.kl.use_loss": False,
    "--algo.kl.unbiased_gradient": False,
    "--algo.advantage.estimator": "group_norm",
    "--actor.aux_loss_coef": 0.0,
    "--actor.loss_agg_mode": "token-mean",
    "--actor.policy_loss_type": "ppo",
    "--actor.optim": "adam",
    "--actor.num_nodes": 1,
    "--reward.remote_url": "reward.py",
    "--rollout.n_samples_per_prompt": 1,
}


@dataclass(frozen=True)
class Work:
    """What actors do for a step; the defaults leave out nothing but padding.

    Args:
        old_log_probs, stream: as --train.old_log_probs and --train.stream.
        micro_batches: `length` or `shuffled` as --train.micro_batches, of padded samples; or `packed`.
        micro_batch_size: samples of a padded micro-batch, for each rank.
        actor_gpus: that the engines do not use; 0: actors and engines take turns on all GPUs.
        optimizer_steps: of a rollout.
        rank_gpus: that share each packed sample, by a ring or by parts of the model, and are as fast together as apart.
    """

    old_log_probs: str = "forward"
    micro_batches: str = "packed"
    stream: str = "off"
    micro_batch_size: int = 1
    actor_gpus: int = 0
    optimizer_steps: int = 1
    rank_gpus: int = 1

    @cached_property
    def has_forward(self) -> bool:
        """Whether a forward pass of all samples makes the old log-probabilities."""
        return bool(why_forward(self._arguments))

    @property
    def in_parts(self) -> bool:
        """Whether the actors train several optimizer steps one by one, and make old log-probabilities for all but the first."""
        return self.optimizer_steps > 1 and not self.has_forward

    @cached_property
    def by_length(self) -> bool:
        """Whether micro-batches have samples of like lengths."""
        return not why_shuffled(self._arguments)

    @property
    def streams(self) -> bool:
        """Whether groups are trained while others still decode."""
        return not self.why_not_streamed

    @cached_property
    def why_not_streamed(self) -> str:
        """Training's reason to wait for all groups; empty if groups are streamed."""
        return why_not_streamed(self._arguments)

    @cached_property
    def _arguments(self) -> SimpleNamespace:
        """The arguments of such a training run, as far as the rules of training ask for them."""
        flags = {flag: action.default for flag, action in training_flags().items()} | FLAGS
        packed = self.micro_batches == "packed"
        flags |= {
            "--train.old_log_probs": self.old_log_probs,
            "--train.micro_batches": "length" if packed else self.micro_batches,
            "--train.stream": self.stream,
            "--train.colocate_all": not self.actor_gpus,
            "--ds.packing_samples": packed,
            "--actor.num_gpus_per_node": max(self.actor_gpus, 1),
            "--rollout.batch_size": self.optimizer_steps,
            "--train.batch_size": 1,
        }
        return nested(flags)


def add_work_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `Work`, by training's names without their prefixes."""
    usual, flags = Work(), training_flags()
    for name in ("old_log_probs", "stream"):
        action = flags[f"--train.{name}"]
        parser.add_argument(
            f"--{name}",
            choices=action.choices,
            default=getattr(usual, name),
            help=f"{action.help}; default here: %(default)s",
        )
    parser.add_argument(
        "--micro_batches",
        choices=["packed", *flags["--train.micro_batches"].choices],
        default=usual.micro_batches,
        help="samples are packed, which leaves no padding; or padded in micro-batches by length or shuffled",
    )
    parser.add_argument(
        "--micro_batch_size", type=int, default=usual.micro_batch_size, help="samples of a padded micro-batch"
    )
    parser.add_argument(
        "--optimizer_steps",
        type=int,
        default=usual.optimizer_steps,
        help="of a rollout; its samples are dealt to them",
    )
    parser.add_argument(
        "--actor_gpus",
        type=int,
        default=usual.actor_gpus,
        help="GPUs of --gpus that are the actors' alone; 0: actors and engines take turns on all",
    )


def work_of(arguments: argparse.Namespace) -> Work:
    """The work that the flags describe.

    Raises:
        ValueError: they do not fit each other; the message names the flag.
    """
    for name in ("micro_batch_size", "optimizer_steps"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    if arguments.actor_gpus < 0 or arguments.actor_gpus >= min(arguments.gpus):
        raise ValueError(
            f"--actor_gpus must be at least 0 and leave GPUs of --gpus {min(arguments.gpus)} to the engines, got "
            f"{arguments.actor_gpus}"
        )
    names = ("old_log_probs", "micro_batches", "stream", "micro_batch_size", "optimizer_steps", "actor_gpus")
    work = Work(**{name: getattr(arguments, name) for name in names})
    if work.stream == "auto" and not work.streams:
        raise ValueError(
            f"--stream auto: training waits for all groups ({work.why_not_streamed}): use --stream off, or --actor_gpus with "
            "padded --micro_batches and --old_log_probs auto"
        )
    return work

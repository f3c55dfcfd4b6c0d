"""In a policy's actor: a trainer that trains steps as the scheduler makes them.

The way of a step: `receive_rollout` has its rewards; `fit` of OpenRLHF's actor calls `ppo_train`, for a bucket by
`train_bucket` (streamed_training.py); micro-batches come by length (micro_batches.py); `training_step` makes their advantages
(rollout_rewards.py) and their loss; `optimizer_step` ends it with a weight (step_weights.py), and the engines get the weights
(weight_sync.py).
"""

import math
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

from openrlhf_sagc.config.layout import data_parallel_actors
from openrlhf_sagc.config.savings import why_forward, why_shuffled
from openrlhf_sagc.decisions.token_weights import PlainSteps, step_weight
from openrlhf_sagc.training.micro_batches import LengthBuffer, make_old_log_probs
from openrlhf_sagc.training.rollout_rewards import RolloutRewards, rollout_advantages
from openrlhf_sagc.training.step_weights import StepCounts, as_plain_steps
from openrlhf_sagc.training.streamed_training import OPTIMIZER_SECONDS, Buckets
from openrlhf_sagc.training.weight_sync import announce_weights


@dataclass(eq=False)
class StepShare:
    """The step that samples are of; an object for each step.

    Attributes:
        progress: share of the run's prompts used by the steps before, 0 to 1.
        num_samples: members of the whole step's groups.
        divisor: of the loss of every bucket, where the step is trained in buckets; a power of two, so that dividing rounds
            nothing. Else None.
        plain: what a round of tail batching is weighed by; None for a plain step, and for a bucket that ends no optimizer
            step.
        lost: of the members those that a failed reward has cost, as far as it is known.
    """

    progress: float
    num_samples: int
    divisor: float | None = None
    plain: PlainSteps | None = None
    lost: int = 0


def receive_rollout(model_actor, step: StepShare, rewards: RolloutRewards) -> None:
    """Run in a policy's actor before it trains on a step, or on a bucket of it; the first call installs `GroupActorTrainer`.

    Args:
        model_actor: OpenRLHF's PolicyModelActor.
        step: what the samples are of.
        rewards: of all samples, of other actors' too.

    Raises:
        RuntimeError: the step is streamed, and the optimizer has no loss scale.
    """
    if not isinstance(model_actor.trainer, GroupActorTrainer):
        model_actor.trainer = GroupActorTrainer(model_actor)
        announce_weights(model_actor)
    model_actor.trainer.receive(step, rewards)


class GroupActorTrainer(ActorPPOTrainer):
    """OpenRLHF's trainer of a policy's actor, for steps of groups of any size, streamed ones and rounds of tail batching.

    It takes over what OpenRLHF's trainer has made, which must not train any more.

    Args:
        model_actor: OpenRLHF's PolicyModelActor.
    """

    actor_loss_fn: Any
    replay_buffer: NaiveReplayBuffer
    ends_optimizer_step: list[Any]

    def __init__(self, model_actor) -> None:
        self.__dict__.update(vars(model_actor.trainer))
        self._model_actor = model_actor
        self._counts, self._optimizer_seconds = StepCounts(self.strategy), 0.0
        self._buckets: Buckets | None = None  # of the rollout that is being trained, where its parts come one by one
        self.ends_rollout = True  # else the optimizer does not step
        # OpenRLHF's training step calls these two. Its trainer has no methods for them that could be overridden.
        self._optimizer_step, self.strategy.optimizer_step = self.strategy.optimizer_step, self.optimizer_step
        self.actor_loss_fn = partial(self._loss_of_policy, self.actor_loss_fn)
        self._effective: torch.Tensor | None = None  # share of the last micro-batch's tokens
        self._by_length = not why_shuffled(self.args)
        if self._by_length:
            self.replay_buffer = LengthBuffer(self.replay_buffer)

    def receive(self, step: StepShare, rewards: RolloutRewards) -> None:
        """The samples that come next are those of a step, or a bucket of it; arguments and errors as of `receive_rollout`.

        It moves the learning rate to the schedule's, and sets how many micro-batches make an optimizer step.
        """
        if step.divisor is not None and not hasattr(optimizer := type(self.actor.model.optimizer), "loss_scale"):
            raise RuntimeError(
                f"--train.stream auto needs a DeepSpeed optimizer with a loss scale, and {optimizer.__name__} has none: "
                "use --train.stream off"
            )
        self._step, self._rewards = step, rewards
        follow_schedule(self._model_actor, step.progress)
        steps = keep_number_of_steps(self._model_actor, step.num_samples, step.lost)
        if isinstance(self.replay_buffer, LengthBuffer):
            self.replay_buffer.has_bucket = step.divisor is not None
        if self._buckets is None and (step.divisor is not None or steps > 1 and self._goes_one_by_one()):
            self._buckets = Buckets(steps)

    def _goes_one_by_one(self) -> bool:
        """Whether each optimizer step of a rollout gets its old log-probabilities when its turn comes."""
        return not (self.args.train.dynamic_batch_enable or why_forward(self.args) or uses_dropout(self._model_actor))

    def ppo_train(self, kl_ctl: float) -> dict[str, float]:
        """Train what is in the replay buffer, and after a rollout's last bucket its further optimizer steps.

        Returns:
            OpenRLHF's scalars, at the end of a rollout those of all of it.
        """
        if self._buckets is None:
            return self._train(kl_ctl)
        buckets, buffer = self._buckets, self.replay_buffer
        buffer.items, others = buckets.deal(buffer.items)
        if others:
            make_old_log_probs(self._model_actor, others)
        status = self._train(kl_ctl)
        buckets.end_training(status)
        if not self.ends_rollout:
            return status
        for waiting in buckets.waiting:
            buffer.items = waiting
            buckets.end_training(self._train(kl_ctl))
            waiting.clear()
        self._buckets = None
        return buckets.merged(self.strategy)

    def _train(self, kl_ctl: float) -> dict[str, float]:
        """OpenRLHF's training of what is in the replay buffer; rank 0 adds the optimizer's seconds to its scalars."""
        status = super().ppo_train(kl_ctl)
        seconds, self._optimizer_seconds = self._optimizer_seconds, 0.0
        return {**status, OPTIMIZER_SECONDS: seconds} if self.strategy.is_rank_0() else status

    def training_step(self, experience: Experience, kl_ctl: float, step: int, loss_batch_info: Any = None) -> dict:
        """OpenRLHF's training step of a micro-batch, the `step`-th, whose tokens get their advantages here first."""
        experience.advantages = rollout_advantages(self._rewards, experience)
        buffer, divisor = self.replay_buffer, self._step.divisor
        # A rank with fewer dynamic batches than others repeats a sample, with a loss of 0.
        if not (buffer.dynamic_batch and math.isinf(buffer.dynamic_batch_num_tokens[step])):
            self._counts.add(experience)
        if self._buckets is not None:  # only the last bucket ends the step
            self.ends_optimizer_step = [False] * (len(self.ends_optimizer_step) - 1) + [self.ends_rollout]
        if divisor is not None:
            # A constant stands in the place of the optimizer step's tokens, which nobody knows yet.
            constant = divisor / self.strategy.accumulated_gradient
            tokens = torch.full_like(loss_batch_info["batch_num_tokens"], constant)
            loss_batch_info = {**loss_batch_info, "batch_num_tokens": tokens}
        status = super().training_step(experience, kl_ctl, step, loss_batch_info)
        if self._effective is not None:
            status["metrics"]["is_effective_share"], status["weights"]["is_effective_share"] = self._effective, "token"
        if self._by_length or divisor is not None:
            log_own_losses(status, loss_batch_info)
        if self._buckets is not None:
            self._buckets.add(status)
        return status

    def _loss_of_policy(
        self, loss_fn, log_probs_BT: torch.Tensor, old_BT: torch.Tensor | None, *args, **kwargs
    ) -> tuple[torch.Tensor, ...]:
        """OpenRLHF's loss. Where there are no old log-probabilities they are the policy's: with a ratio of 1. So are the
        engines', where an agent has returned none (NaN): without importance correction."""
        old_BT = log_probs_BT.detach() if old_BT is None else old_BT
        theirs_BT = kwargs.get("rollout_log_probs")
        if theirs_BT is not None:
            kwargs["rollout_log_probs"] = theirs_BT = torch.where(theirs_BT.isnan(), old_BT, theirs_BT)
            self._effective = effective_share(old_BT - theirs_BT, kwargs["action_mask"])
        return loss_fn(log_probs_BT, old_BT, *args, **kwargs)

    def optimizer_step(self, *args, **kwargs) -> None:
        """The strategy's, which does next to nothing in a micro-batch that does not end an optimizer step.

        One that does counts as many plain steps as its samples ask for. A streamed step's gradients are divided here.
        """
        engine, step = self.actor.model, self._step
        with ExitStack() as settings:
            if engine.is_gradient_accumulation_boundary():
                weight = 1.0
                if step.divisor is not None or step.plain is not None:
                    tokens, samples = self._counts.of_all_ranks()
                    if step.divisor is not None:
                        engine.optimizer.loss_scale = tokens / step.divisor
                        # The scaler is saved in checkpoints.
                        settings.callback(setattr, engine.optimizer, "loss_scale", 1.0)
                    if step.plain is not None:
                        weight = step_weight(tokens, samples, step.plain)
                self._counts.clear()
                settings.enter_context(as_plain_steps(engine, weight))
            # The backward pass may still run on a GPU. Waiting costs nothing: OpenRLHF reads scalars off it right after.
            get_accelerator().synchronize()
            started = time.perf_counter()
            self._optimizer_step(*args, **kwargs)
            get_accelerator().synchronize()
            self._optimizer_seconds += time.perf_counter() - started


def log_own_losses(status: dict, loss_batch_info: dict) -> None:
    """Make the logged losses of a training step those of the micro-batch's own tokens.

    OpenRLHF logs shares of the optimizer step's loss, and averages them by tokens. That is right for micro-batches of as
    many tokens each alone, which micro-batches by length are not.
    """
    scale = loss_batch_info["batch_num_tokens"] / loss_batch_info["dp_size"] / max(status["num_action_tokens"], 1.0)
    metrics = status["metrics"]
    for name in ("policy_loss", "entropy_loss", "kl"):
        if name in metrics and metrics[name].dim() == 0:
            metrics[name] = metrics[name] * scale


def effective_share(log_weights_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Effective sample size of importance weights, as a share of the tokens where the mask is 1: 1 where all weigh as much."""
    weights_BT = log_weights_BT.detach().float().clamp(-20, 20).exp() * mask_BT
    return weights_BT.sum() ** 2 / (mask_BT.sum() * (weights_BT**2).sum()).clamp(min=1e-9)


def uses_dropout(model_actor) -> bool:
    """Run in a policy's actor: whether training has noise that rollouts have not, so that log-probabilities differ."""
    model = model_actor.actor.model.module
    modules = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    return modules or _has_noise(model.config.to_dict())


def _has_noise(config: dict) -> bool:
    """Whether a model's configuration, or one inside it, asks for dropout or jitter."""
    inner = any(_has_noise(value) for value in config.values() if isinstance(value, dict))
    shares = [value for name, value in config.items() if re.search("dropout|pdrop$|jitter", str(name))]
    return inner or any(isinstance(share, float) and share > 0 for share in shares)


def follow_schedule(model_actor, progress: float) -> None:
    """Give the step's first optimizer step the learning rate of the schedule at `progress`, 0 to 1.

    OpenRLHF lays the schedule out for all prompts at n_samples_per_prompt, and moves on by one with every optimizer step.
    That is too slow or too fast if a step takes more or fewer prompts.
    """
    scheduler = model_actor.actor_scheduler
    position = round(progress * model_actor.max_steps)
    if position != scheduler.last_epoch:
        scheduler.last_epoch = position - 1
        scheduler.step()


def keep_number_of_steps(model_actor, num_samples: int, lost: int = 0) -> int:
    """Larger groups than n_samples_per_prompt are trained in larger optimizer steps, not in more of them.

    More steps would train the last ones on rollouts of a policy that is further behind. The steps of a rollout are about
    equal, so that none of them has a few samples alone. Samples that are `lost` make them smaller, and not fewer.

    Returns:
        The optimizer steps of the rollout, for each of which every rank has a sample.
    """
    strategy = model_actor.strategy
    rollout, train = strategy.args.rollout, strategy.args.train
    usual, left = rollout.batch_size * rollout.n_samples_per_prompt, num_samples - lost
    if train.dynamic_batch_enable:
        train.batch_size = math.ceil(num_samples / usual) * strategy.train_batch_size
        steps = math.ceil(num_samples / train.batch_size)
        if left <= train.batch_size * (steps - 1):
            train.batch_size = math.ceil(left / steps)
        return steps
    ranks = data_parallel_actors(strategy.args)
    at_once = train.micro_batch_size * ranks
    micro_batches = math.ceil(num_samples / at_once)
    steps = min(math.ceil(num_samples / strategy.train_batch_size), usual // strategy.train_batch_size)
    steps = math.ceil(micro_batches / math.ceil(micro_batches / steps))
    strategy.accumulated_gradient = math.ceil(math.ceil(left / at_once) / steps)
    engine = model_actor.actor.model
    engine.set_train_batch_size(
        strategy.accumulated_gradient * engine.dp_world_size * engine.train_micro_batch_size_per_gpu()
    )
    return min(steps, left // ranks)

"""OpenRLHF's trainers with the samples generator and the experience maker of this package."""

import gc
import statistics
import time
from contextlib import nullcontext, suppress
from queue import Empty
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer, PPOTrainer
from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor, PPOTrainerAsync, TrainingActor
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_sagc.config.savings import why_not_streamed
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.driver.checkpointing import Checkpointing
from openrlhf_sagc.driver.experience import GroupExperienceMaker
from openrlhf_sagc.driver.kept_steps import KeptRollouts
from openrlhf_sagc.driver.messages import who_waits
from openrlhf_sagc.driver.prompts import in_order
from openrlhf_sagc.driver.rollout import StragglerAwareSamplesGenerator
from openrlhf_sagc.driver.step_seconds import ACTORS_WAIT, ENGINES_WAIT, OTHER
from openrlhf_sagc.driver.streaming import StepSamples, Stream
from openrlhf_sagc.run.wishes import GivenUp, wishes
from openrlhf_sagc.training.average import save_average
from openrlhf_sagc.training.weight_sync import broadcast_merged

logger = init_logger(__name__)

STEPS_OF_WAITS = 20  # after which a line says which side of an asynchronous run waits
YOUNG_OBJECTS = 100_000  # that are made before Python looks for garbage among them; its default is 700


class GroupSampling:
    """What rolls out: the scheduler takes the place of OpenRLHF's samples generator, with its prompts and engines."""

    samples_generator: Any
    prompts_dataloader: Any

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        theirs = self.samples_generator
        if folder := theirs.args.train.rollouts_from:
            self.samples_generator = self.prompts_dataloader = KeptRollouts(folder)
            return
        prompts, data = theirs.prompts_dataloader, theirs.args.data
        if data.keep_order:
            prompts = in_order(theirs.strategy, prompts, data.dataloader_num_workers)
        self.samples_generator = generator = StragglerAwareSamplesGenerator(
            theirs.strategy, prompts, theirs.eval_dataloader, theirs.tokenizer, theirs.vllm_engines
        )
        settings = generator.settings.train
        self.prompts_dataloader = _PromptsOfRun(generator, settings.async_enable and settings.async_queue_size + 1)
        collect_less_garbage()


class _PromptsOfRun:
    """What stands for the prompt dataloader in OpenRLHF's loops, which save its state alone: the scheduler's is with it.

    How far the dataloader is says nothing of the prompts that were drawn and not trained yet (#1322).

    Args:
        generator: whose state it is.
        ahead: steps that are rolled out before they are trained. Then OpenRLHF sends the state from process to process, so
            that of a step whose checkpoint is not due stays here; `kept` has those of the last steps, by number.
    """

    def __init__(self, generator: StragglerAwareSamplesGenerator, ahead: int = 0) -> None:
        self._generator, self._ahead = generator, ahead
        self.kept: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._generator.prompts_dataloader)

    def state_dict(self) -> dict[str, Any]:
        step = self._generator.planner.steps
        if not self._ahead:
            return self._generator.state_dict()
        state = self._generator.state_dict(is_due=self._is_due(step))
        self.kept = {number: kept for number, kept in self.kept.items() if number >= step - self._ahead} | {
            step: state
        }
        return state if self._is_due(step) else {}

    def _is_due(self, step: int) -> bool:
        """Whether a checkpoint of this step, counted from 1, may be saved: its own, or that of the best evaluation so far."""
        args = self._generator.args
        if self._generator.eval_dataloader is not None and step % args.eval.steps == 0:  # -1 is infinite there
            return True
        return step % args.ckpt.save_steps == 0

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.load_state_dict(state)


def collect_less_garbage() -> None:
    """Let Python look for garbage less often, since thousands of groups in flight are none.

    What is imported lives as long as the run, so no collection looks at it again. Objects without cycles, which nearly
    all are here, are freed at once as before.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


class GroupTraining(Checkpointing):
    """What trains: groups may have any size, and the log has the scheduler's scalars."""

    actor_model_group: Any

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.settings = Settings.of(self.args)
        self.experience_maker = GroupExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
        )
        self.actor_model_group = _PolicyActors(
            self.actor_model_group, bool(self.args.ds.lora.rank), self.args.train.enable_ema
        )
        if self.wandb_logger:
            log_eval = self.wandb_logger.log_eval
            # OpenRLHF tells W&B that `eval/epoch` is the axis of an evaluation's metrics, and never logs it.
            self.wandb_logger.log_eval = lambda step, metrics: log_eval(step, {**metrics, "epoch": step})

    def train_step(self, step: StepSamples, global_step: int) -> tuple[dict, int]:
        started = time.perf_counter()
        self._streamed = step.stream.made if step.stream else []
        waited = step.stream.join() if step.stream else 0.0
        with self.trains():
            status, global_step = super().train_step(step, global_step)
        if step.stream:
            status["timing/ppo_train"] += waited
        timed = sum(seconds for name, seconds in status.items() if name.startswith("timing/"))
        status[OTHER] = max(time.perf_counter() - started - timed, 0.0)  # OpenRLHF adds it to timing/step_total
        # In this order: no log of a reward's takes the place of OpenRLHF's.
        return {**step.metrics, **status}, global_step

    def _compute_rollout_stats(self, experiences: list[Experience]) -> dict[str, float]:
        """OpenRLHF's scalars, of the samples too that were trained before."""
        return super()._compute_rollout_stats([*self._streamed, *experiences])


class _PolicyActors:
    """OpenRLHF's group of the policy's actors, some of whose methods are called in another way.

    A checkpoint's state goes to them as one object of Ray's instead of a copy for each.

    Args:
        group: OpenRLHF's.
        adapted: the policy has LoRA adapters, with which OpenRLHF's own weight sync would fail.
        has_average: of its weights, which OpenRLHF's checkpoints would not have.
    """

    def __init__(self, group, adapted: bool, has_average: bool) -> None:
        self._group, self._adapted, self._has_average = group, adapted, has_average

    def __getattr__(self, name: str):
        return getattr(self._group, name)

    def async_run_method(self, method_name: str, *args, **kwargs) -> list:
        """OpenRLHF's call of a method of every actor."""
        if "client_states" in kwargs:
            kwargs["client_states"] = ray.put(kwargs["client_states"])
        if (
            method_name == "save_checkpoint" and self._has_average
        ):  # which is there before the checkpoint counts as whole
            saved = self._group.async_run_method("__ray_call__", save_average, kwargs["tag"])
            return [*saved, *self._group.async_run_method(method_name, *args, **kwargs)]
        if method_name == "broadcast_to_vllm" and self._adapted:
            return self._group.async_run_method("__ray_call__", broadcast_merged)
        return self._group.async_run_method(method_name, *args, **kwargs)


class _Interruptible:
    """A queue of Ray's, whose `get` raises GivenUp where the command wishes the end."""

    def __init__(self, queue) -> None:
        self._queue, self.put = queue, queue.put
        self._got = time.perf_counter()
        self.wait_share = 0.0  # of the last `get`, of the time since the one before

    def get(self, block: bool = True) -> Any:
        asked = time.perf_counter()
        while True:
            wishes().look()
            with suppress(Empty):
                entry = self._queue.get(block, timeout=1.0)
                before, self._got = self._got, time.perf_counter()
                self.wait_share = (self._got - asked) / max(self._got - before, 1e-9)
                return entry


class GroupTrainer(GroupSampling, GroupTraining, PPOTrainer):
    """Rolls out and trains in turn, or trains what is back while it still rolls out."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if not why_not_streamed(self.settings):
            self.samples_generator.stream = Stream(self.experience_maker, self.kl_ctl)

    def evaluate(self, global_step: int, **generate_kwargs) -> dict[str, float]:
        """Evaluate and log: OpenRLHF's, with the scheduler's metrics."""
        start = time.perf_counter()
        logger.info(f"⏰ Evaluation start time: {time.strftime('%Y-%m-%d %H:%M:%S')}")
        try:
            metrics = self.samples_generator.evaluate(**generate_kwargs)
        except GivenUp:  # the step is saved without
            return {}
        for tracker in (self.wandb_logger, self.tensorboard_logger):
            if tracker:
                tracker.log_eval(global_step, metrics)
        seconds = f"{time.perf_counter() - start:.0f} s"
        logger.info(f"✨ Evaluation completed in {seconds}, global_step {global_step}, eval_metrics: {metrics}")
        return metrics


class GroupGenerator(GroupSampling, GenerateSamplesActor):
    """Rolls out beside the training."""

    rollout_slots: Any

    def fit(self, *args, **kwargs) -> None:
        """OpenRLHF's, which ends early where the command wishes the end."""
        self.rollout_slots = _Interruptible(self.rollout_slots)
        # Behind the sync of a resumed run.
        self.samples_generator.flight.weights = self.samples_generator.planner.steps
        with suppress(GivenUp):
            super().fit(*args, **kwargs)

    def state_of(self, step: int) -> dict[str, Any]:
        """What a checkpoint of this step has of the scheduler; {} if that step was rolled out too long ago."""
        return self.prompts_dataloader.kept.get(step, {})

    def note_sync(self) -> None:
        """The engines have other weights from now on."""
        self.samples_generator.flight.weights += 1

    def evaluate(self) -> dict[str, float]:
        """OpenRLHF's, with the scheduler's metrics, which the trainer logs; its fit waits meanwhile, but with a pool. None where it is given up."""
        settings = {
            "temperature": self.args.eval.temperature,
            "n_samples_per_prompt": self.args.eval.n_samples_per_prompt,
        }
        beside = self.samples_generator.planner.pool is not None  # a pool's rollouts go on, and others begin
        with nullcontext() if beside else self._generation_lock, suppress(GivenUp):
            return self.samples_generator.evaluate(**{**self.generate_kwargs, **settings})
        return {}


class _CountedSyncs(BasePPOTrainer):
    """Counts weight syncs where it is rolled out; behind `TrainingActor`, whose lock keeps rollouts out meanwhile."""

    generator_actor: Any

    def broadcast_to_vllm(self) -> None:
        super().broadcast_to_vllm()
        ray.get(self.generator_actor.note_sync.remote())


class GroupTrainingActor(GroupTraining, TrainingActor, _CountedSyncs):
    """Trains beside the rollouts."""

    rollout_queue: Any

    def fit(self, *args, **kwargs) -> None:
        self.rollout_queue = _Interruptible(self.rollout_queue)
        self._waits: list[tuple[float, float]] | None = (
            None  # of engines and actors, behind the first step, since a line said so
        )
        super().fit(*args, **kwargs)

    def train_step(self, step: StepSamples, global_step: int) -> tuple[dict, int]:
        step.metrics[ACTORS_WAIT] = self.rollout_queue.wait_share
        waits = (step.metrics[ENGINES_WAIT], step.metrics[ACTORS_WAIT])
        self._waits = [] if self._waits is None else [*self._waits, waits]  # the first step waits for the start
        if len(self._waits) == STEPS_OF_WAITS:
            engines, actors = map(statistics.fmean, zip(*self._waits))
            logger.info(who_waits(engines, actors, self.settings))
            self._waits = []
        return super().train_step(step, global_step)

    def _complete(self, step: int, client_states: dict[str, Any] | None) -> None:
        """The scheduler's state did not come with the samples where nobody knew that the step would be saved."""
        if client_states and not client_states["data_loader_state_dict"]:
            client_states["data_loader_state_dict"] = ray.get(self.generator_actor.state_of.remote(step))
        super()._complete(step, client_states)


class GroupTrainerAsync(PPOTrainerAsync):
    generator_actor_cls = GroupGenerator
    training_actor_cls = GroupTrainingActor

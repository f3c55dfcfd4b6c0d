"""What a trainer saves and when: at OpenRLHF's steps, and at the command's wish, with which a run may also end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.utils.logging_utils import init_logger
from ray.exceptions import RayTaskError

from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.driver.evaluation import FAILED
from openrlhf_sagc.driver.step_seconds import step_seconds
from openrlhf_sagc.run.notes import write_notes
from openrlhf_sagc.run.wishes import GivenUp, Training, tell, wishes
from openrlhf_sagc.training.average import load_average

logger = init_logger(__name__)

KL_COEFFICIENT = "kl_coefficient"  # of a checkpoint's states
LATELY = 3  # steps whose seconds say how long the next one is trained


class Checkpointing(BasePPOTrainer):
    """OpenRLHF's trainer, which saves more of the run's state, names failed saves, and hears the command's wishes.

    At the wish to end, the step that is rolled out or evaluated is given up at once, and one that is trained at its end.
    """

    settings: Settings
    _finished: tuple[int, dict[str, Any] | None] | None = (
        None  # the last step of this run, and OpenRLHF's states of it
    )
    _saved = 0  # step of the last checkpoint of this run
    _save_seconds = 0.0  # that it took
    _lately: tuple[float, ...] = ()  # seconds of the last steps' training

    def fit(self, *args, **kwargs) -> None:
        """OpenRLHF's.

        Raises:
            GivenUp: the command wishes the end; the last finished step is saved.
        """
        tell(Training())
        try:
            super().fit(*args, **kwargs)
        except GivenUp:
            if self._finished and self._finished[0] != self._saved and wishes().take_save():
                self._save(self._finished[0], {}, self._finished[1], wished=True)
            for tracker in (self.wandb_logger, self.tensorboard_logger):
                if tracker:
                    tracker.close()
            raise

    @contextmanager
    def trains(self) -> Iterator[None]:
        """While this is entered a step is trained.

        Raises:
            GivenUp: the command wishes the end.
        """
        wishes().look()
        began = time.time()
        tell(Training(began, max(self._lately) + self._save_seconds if self._lately else None))
        yield
        self._lately = (*self._lately, time.time() - began)[-LATELY:]
        tell(Training())

    def init_checkpoint_states(self) -> dict[str, Any]:
        """OpenRLHF's, where the scheduler's state is with the dataloader's, as `_PromptsOfRun` takes it.

        An adaptive KL coefficient and the average of the weights go on as they were saved, too.
        """
        states = super().init_checkpoint_states()
        if not states["global_step"]:
            return states
        names = ("samples_generator", "data_loader_state_dict")
        states["data_loader_state_dict"] = {name: states[name] for name in names if name in states}
        if self.args.algo.kl.target:
            self.kl_ctl.value = states.get(KL_COEFFICIENT, self.kl_ctl.value)
        if self.args.train.enable_ema:
            found = ray.get(self.actor_model_group.async_run_method("__ray_call__", load_average))
            if not all(found):
                logger.warning(
                    f"the checkpoint of step {states['global_step']} has no average of the weights (--train.enable_ema), which "
                    "begins with the checkpoint's weights"
                )
        return states

    def restore_best_checkpoint_state(self, checkpoint_states: dict[str, Any]) -> None:
        """OpenRLHF's, where the run's own --ckpt.best_metric_key counts."""
        own, saved = self.best_eval_metric_key, (checkpoint_states or {}).get("best_eval_metric_key")
        if not own or not saved or own == saved:
            return super().restore_best_checkpoint_state(checkpoint_states)
        logger.warning(
            f"--ckpt.best_metric_key {own} takes the place of {saved}, by which the checkpoint's run chose its best: that best is "
            "forgotten, and the next evaluation begins anew"
        )

    def save_logs_and_checkpoints(self, global_step: int, status: dict, client_states: dict | None = None) -> None:
        """OpenRLHF's, with a checkpoint also where the command wishes one.

        Raises:
            GivenUp: the command wishes the end.
        """
        self._finished = global_step, client_states
        self._save(global_step, {**status, **step_seconds(status)}, client_states, wishes().take_save())
        wishes().look()

    def _save(self, step: int, scalars: dict, client_states: dict | None, wished: bool) -> None:
        """Log a finished step, and save it where that is due or wished."""
        every, began = self.args.ckpt.save_steps, time.time()
        due = wished or step % every == 0
        if due:
            self._complete(step, client_states)
            self.args.ckpt.save_steps = 1
        try:
            with _named_failure(self.settings.ckpt.path, step):
                super().save_logs_and_checkpoints(step, scalars, client_states)
        finally:
            self.args.ckpt.save_steps = every
        if due:
            self._note(step, client_states)
            self._saved, self._save_seconds = step, time.time() - began

    def save_best_checkpoint(self, eval_metrics: dict, global_step: int, client_states: dict | None = None) -> None:
        """OpenRLHF's, unless rewards of the evaluation failed: its metrics say too little of the weights."""
        if failed := eval_metrics.get(FAILED):
            logger.warning(
                f"the evaluation of step {global_step} has {failed:.0f} samples without a reward, which count as its worst; "
                "so its checkpoint cannot become the best"
            )
            return
        self._complete(global_step, client_states)
        with _named_failure(self.settings.ckpt.path, global_step):
            super().save_best_checkpoint(eval_metrics, global_step, client_states)
        self._note(global_step, client_states)

    def _note(self, step: int, client_states: dict[str, Any] | None) -> None:
        """Write the package's note into the checkpoints of a step, with what says whether anything is left to train."""
        states = client_states or {}
        state = states.get("samples_generator", {})
        progress = {
            "episodes": states.get("episode"),  # that are over
            "prompts_consumed": state.get("prompts_consumed"),
            "prompts_waiting": sum(len(state.get(name, ())) for name in ("returned", "accepted", "frame")),
        }
        write_notes(self.settings.ckpt.path, step, {**self.settings.data.described, **progress})

    def _complete(self, step: int, client_states: dict[str, Any] | None) -> None:
        """Give a checkpoint the scheduler's state under a key of its own, and the episode that a resumed run begins in.

        OpenRLHF saves that of the step, which may have been the last one of its episode; a resumed run would repeat it.
        """
        saved = (client_states or {}).get("data_loader_state_dict", {})
        if client_states:
            client_states[KL_COEFFICIENT] = self.kl_ctl.value
        if client_states and "samples_generator" in saved:
            client_states.update(saved, episode=saved["samples_generator"]["episode"] - 1)


@contextmanager
def _named_failure(path: str, step: int) -> Iterator[None]:
    """Say in one line that a checkpoint could not be saved, and how to go on."""
    try:
        yield
    except RayTaskError as error:
        reason = " ".join(f"{type(error.cause).__name__}: {error.cause}".split())
        raise RuntimeError(
            f"the checkpoint of step {step} could not be saved in --ckpt.path {path}: {reason:.300}; mend that, and start "
            "again with --ckpt.load_enable"
        ) from error

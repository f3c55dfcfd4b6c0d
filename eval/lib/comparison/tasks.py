"""The small tasks that a comparison can train."""

from pathlib import Path
from typing import NamedTuple

from lib.paths import ROOT


class Task(NamedTuple):
    """A folder of train_scripts/, and how to train on it.

    Tokens of a response, and of prompt and response, at most; steps of the warm start; learning rate of the RL.
    """

    name: str
    max_new_tokens: int
    max_len: int
    warm_start_steps: int
    learning_rate: float

    @property
    def grader(self) -> Path:
        return ROOT / "train_scripts" / self.name / "reward.py"

    @property
    def flags(self) -> dict[str, float]:
        """Flags of a training run on the task."""
        return {
            "rollout.max_new_tokens": self.max_new_tokens,
            "data.max_len": self.max_len,
            "actor.adam.lr": self.learning_rate,
        }


TASKS = {task.name: task for task in (Task("countdown", 200, 256, 850, 8e-5), Task("route", 584, 592, 900, 1e-4))}
COUNTDOWN = TASKS["countdown"]


def task_of(folder: Path) -> Task:
    """The task whose warm start made the folder.

    Raises:
        ValueError: the folder does not say it; the message begins with --task.
    """
    named = folder / "data/task.txt"
    if not named.exists():
        raise ValueError(
            f"--task {folder} does not say which task it holds: make it again with train_scripts/warm_start.py"
        )
    return TASKS[named.read_text().strip()]

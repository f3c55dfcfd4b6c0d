"""The loop that rolls a step out, in training and in the simulator."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from openrlhf_sagc.decisions.records import Back, Ended, Group
from openrlhf_sagc.decisions.step import Step


class RolloutEngines(Protocol):
    """The engines as the loop sees them."""

    def dispatch(self, groups: Sequence[Group]) -> None:
        """Begin the rollouts of these groups, each on its engine."""

    def ended(self) -> Sequence[Ended]:
        """Wait for rollouts to end, or to have nothing but rewards to come; none if none does for a while."""
        ...

    def stop_surplus(self, groups: dict[int, list[int]]) -> None:
        """Stop what still runs of these groups, by number: the engine of each rollout. They end, too."""

    def stop(self) -> Iterable[Sequence[Ended]]:
        """Stop all that runs, until everything has ended."""
        ...


class StepTrainer(Protocol):
    """Who trains the step."""

    def take_back(self, step: Step, back: Back) -> None:
        """A group is back; if its fate is open, `step.judge` is to be called."""

    def look_on(self, step: Step) -> None:
        """The step has dispatched what it can."""

    def wait_on(self, step: Step) -> None:
        """No rollout has ended for a while."""


def roll_out(step: Step, groups: Sequence[Group], engines: RolloutEngines, trainer: StepTrainer) -> None:
    """Roll out these first groups, and more as the step asks for them, until it waits for nothing any more."""
    engines.stop_surplus(step.take_surplus())  # of groups of the step before
    _dispatch(step, groups, engines, trainer)
    while step.waits:
        ended = engines.ended()
        _take_back(step, ended, trainer)
        if not ended:
            trainer.wait_on(step)
        engines.stop_surplus(step.take_surplus())
        _dispatch(step, step.dispatch(), engines, trainer)


def stop(step: Step, engines: RolloutEngines, trainer: StepTrainer) -> None:
    """Stop all groups that run; those that have finished meanwhile are judged like any other."""
    for ended in engines.stop():
        _take_back(step, ended, trainer)


def put_back_rest(step: Step, engines: RolloutEngines) -> None:
    """Behind the last step of a pool's run: stop what has filled it up, and put all that back, since a longer run trains it."""
    left = [group.prompt for group in step.flight.accepted]
    for ended in engines.stop():
        left += [back.group.prompt for back in step.receive(ended) if back.fate is None]
    step.queue.put_back_unused(left)
    step.flight.accepted = []
    step.queue.end()


def _dispatch(step: Step, groups: Sequence[Group], engines: RolloutEngines, trainer: StepTrainer) -> None:
    if groups:
        engines.dispatch(groups)
    trainer.look_on(step)


def _take_back(step: Step, ended: Sequence[Ended], trainer: StepTrainer) -> None:
    for back in step.receive(ended):
        trainer.take_back(step, back)


def shortfall(step: Step) -> str:
    """What a step dispatched, and why it has not all its groups, for an error message."""
    reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in step.dropped.items())
    return (
        f"{step.dispatched} prompts of {step.group_size} samples gave {len(step.flight.accepted)} of the "
        f"{step.num_groups} groups of step {step.number + 1} (dropped: {reasons})"
    )

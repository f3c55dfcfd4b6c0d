"""What is in flight between two steps: the groups that run, and those that are kept for the next step."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from openrlhf_sagc.decisions.group_parts import GroupParts
from openrlhf_sagc.decisions.records import Group, Prompt, Rollout


@dataclass
class InFlight:
    """Groups between their dispatch and the close of a step, which one step leaves to the next; `Step` changes it.

    Attributes:
        running: groups that run, by number, in the order of the steps that dispatched them.
        accepted: groups that may be trained, with their samples.
        unobserved: members of every group that is back and that the controller has not seen yet.
        loads: of each engine, by the rollouts that run there, see `Group`.
        dispatched: groups of the run so far; the next one's number.
        weights: the policy's updates that the engines have, as far as is known.
    """

    running: dict[int, GroupParts] = field(default_factory=dict)
    accepted: list[Group] = field(default_factory=list)
    unobserved: list[list[Rollout]] = field(default_factory=list)
    loads: Counter[int] = field(default_factory=Counter)
    dispatched: int = 0
    weights: int = 0

    def __bool__(self) -> bool:
        """Whether any group is in flight."""
        return bool(self.running or self.accepted)

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts of all groups, accepted ones first."""
        return [group.prompt for group in self.accepted] + self.running_prompts

    @property
    def running_prompts(self) -> list[Prompt]:
        """Prompts of the groups that run."""
        return [parts.group.prompt for parts in self.running.values()]

    def state_dict(self) -> dict:
        """Between two steps; without running groups, which the queue saves as put back, or the driver with their rollouts."""
        return {
            "dispatched": self.dispatched,
            "accepted": [
                [group.number, group.step, list(group.prompt), group.size, group.weights, list(group.samples)]
                for group in self.accepted
            ],
            "unobserved": [[list(rollout) for rollout in lengths] for lengths in self.unobserved],
        }

    def run_on(self, groups: Iterable[Group]) -> None:
        """These groups of a checkpoint run."""
        for group in groups:
            self.running[group.number] = GroupParts(group)
            for engine in group.engines:
                self.loads[engine] += group.load

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; nothing runs, see `run_on`."""
        self.running, self.loads = {}, Counter()
        self.dispatched = state["dispatched"]
        self.accepted = [
            Group(number, step, Prompt(*prompt), size, size, samples=samples, weights=weights)
            for number, step, prompt, *others, samples in state["accepted"]
            for size, weights in [(*others, *(len(samples), step)[len(others) :])]  # from formats 7 and 9 on
        ]
        self.unobserved = [[Rollout(*rollout) for rollout in lengths] for lengths in state["unobserved"]]

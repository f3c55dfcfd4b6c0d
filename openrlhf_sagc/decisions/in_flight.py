"""The groups that are dispatched and not yet trained: those that run, and those that were accepted."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat

from openrlhf_sagc.decisions.records import Group, Prompt, Rollout
from openrlhf_sagc.decisions.step import Step


class GroupsInFlight:
    """Groups between their dispatch and the close of a step, and lengths that the controller has not seen yet.

    `running` holds groups by number, in the order of the steps that dispatched them. `accepted` holds groups with their
    samples. `unobserved` holds the rollouts of every group that is back, until `take_lengths` hands them over. `loads`
    are those of the rollouts that run on each engine, see `Group`. `must_finish_running` counts the groups that run and
    whose prompts must finish. All is counted as it changes, so that a group costs the same however many are in flight.
    """

    def __init__(self) -> None:
        self.running: dict[int, Group] = {}
        self.accepted: list[Group] = []
        self.unobserved: list[list[Rollout]] = []
        self.loads: Counter[int] = Counter()
        self._back: dict[int, set[int]] = {}  # of groups that run, by number: places of the rollouts that are back
        self._committed_fresh = 0  # committed groups whose prompts need not finish
        self._committed: set[int] = set()  # numbers
        self._uncommitted: list[Group] = []  # accepted ones, in order of acceptance
        self._dispatched = 0
        self.must_finish_running = 0
        self._must_finish_accepted = 0

    def __bool__(self) -> bool:
        """Whether any group is in flight."""
        return bool(self.running or self.accepted)

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts of all groups, accepted ones first."""
        return [group.prompt for group in [*self.accepted, *self.running.values()]]

    @property
    def must_finish(self) -> int:
        """Number of groups whose prompts must finish."""
        return self.must_finish_running + self._must_finish_accepted

    def new_groups(
        self,
        step: Step,
        prompts: Sequence[Prompt],
        engines: Iterable[tuple[int, ...]] = repeat(()),
        loads: Iterable[int] = repeat(1),
    ) -> list[Group]:
        """A numbered group for each prompt, with its rollouts' engines and what each adds there; none of them runs yet."""
        numbers = range(self._dispatched, self._dispatched + len(prompts))
        self._dispatched = numbers.stop
        sizes, rollouts = repeat(step.group_size), repeat(step.round.rollouts)
        return list(map(Group, numbers, repeat(step.number), prompts, sizes, rollouts, engines, loads))

    def run(self, groups: Iterable[Group]) -> None:
        """These groups are dispatched."""
        for group in groups:
            self.running[group.number] = group
            for engine in group.engines:
                self.loads[engine] += group.load
            self.must_finish_running += group.prompt.must_finish

    def note_back(self, number: int, places: Iterable[int]) -> None:
        """These rollouts of a group that runs are back, others may run on; each is noted once at most."""
        group, back = self.running[number], self._back.setdefault(number, set())
        for place in places:
            self.loads[group.engines[place]] -= group.load
            back.add(place)

    def take_back(self, number: int, lengths: list[Rollout]) -> Group:
        """A group that ran is back, with these rollouts as its members."""
        self.unobserved.append(lengths)
        group, back = self.running.pop(number), self._back.pop(number, ())
        if len(back) < group.rollouts:
            for place, engine in enumerate(group.engines):
                self.loads[engine] -= group.load * (place not in back)
        self.must_finish_running -= group.prompt.must_finish
        return group

    def accept(self, group: Group, samples: Sequence) -> None:
        """A group that is back may be trained."""
        group = group._replace(samples=samples)
        self.accepted.append(group)
        self._uncommitted.append(group)
        self._must_finish_accepted += group.prompt.must_finish

    def waits_for(self, step: Step) -> bool:
        """Whether the step has to wait for a running group.

        A step that has its groups still waits for prompts that must finish, or the slowest would be put off again and
        again. It also waits for groups of the step before, or they would be trained more than one update late.
        """
        if len(self.accepted) < step.num_groups:
            return bool(self.running)
        if self.must_finish_running:
            return True
        return bool(self.running) and next(iter(self.running.values())).step < step.number

    def commit(self, step: Step) -> list[Group]:
        """Accepted groups that the step trains whatever else comes back; each is given once.

        Places are for prompts that must finish, in the order of their dispatch, as long as such prompts run: the first to come
        back are the short ones. The others have what these leave. So what is committed may be trained while groups still
        run, and none of it is ever surplus.
        """
        committed: list[Group] = []
        others: list[Group] = []
        for group in sorted(self._uncommitted, key=_owed_first):
            fresh = not group.prompt.must_finish
            if fresh:
                taken = self._committed_fresh + self.must_finish
            else:
                taken = len(self._committed) + len(committed) + self._must_finish_before(group.number)
            if taken >= step.num_groups:
                others.append(group)
                continue
            self._committed_fresh += fresh
            committed.append(group)
        self._uncommitted = others
        self._committed |= {group.number for group in committed}
        return committed

    def _must_finish_before(self, number: int) -> int:
        """Running groups whose prompts must finish and that were dispatched before this one."""
        if not self.must_finish_running:
            return 0
        return sum(group.prompt.must_finish for group in self.running.values() if group.number < number)

    def take_lengths(self) -> list[list[Rollout]]:
        """Rollouts of the groups that came back since the last call."""
        lengths, self.unobserved = self.unobserved, []
        return lengths

    def close(self, step: Step, *, keep: bool) -> tuple[list[Group], list[Group]]:
        """The groups that the step trains and those that it does not use.

        Committed ones are trained, then those whose prompts must finish, then the others by their numbers. With `keep`, accepted groups of this very step that it does not need stay for the next one.
        """
        committed = self._committed
        groups = sorted(
            self.accepted,
            key=lambda group: (group.number not in committed, not group.prompt.must_finish, group.number),
        )
        trained, surplus = groups[: step.num_groups], groups[step.num_groups :]
        self.accepted = [group for group in surplus if keep and group.step == step.number]
        self._begin_account()
        return trained, [group for group in surplus if not keep or group.step < step.number]

    def state_dict(self) -> dict:
        """What `load_state_dict` needs, besides the prompts of running groups, which the queue saves as put back."""
        return {
            "dispatched": self._dispatched,
            "accepted": [
                [group.number, group.step, list(group.prompt), list(group.samples)] for group in self.accepted
            ],
            "unobserved": [[list(rollout) for rollout in lengths] for lengths in self.unobserved],
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; nothing runs."""
        self.running, self.loads, self._back, self.must_finish_running = {}, Counter(), {}, 0
        self._dispatched = state["dispatched"]
        self.accepted = [
            Group(number, step, Prompt(*prompt), len(samples), len(samples), samples=samples)
            for number, step, prompt, samples in state["accepted"]
        ]
        self._begin_account()
        self.unobserved = [[Rollout(*rollout) for rollout in lengths] for lengths in state["unobserved"]]

    def _begin_account(self) -> None:
        """Count the groups that were accepted before the step, none of which is committed."""
        self._must_finish_accepted = sum(group.prompt.must_finish for group in self.accepted)
        self._uncommitted, self._committed, self._committed_fresh = list(self.accepted), set(), 0


def _owed_first(group: Group) -> float:
    """Order of groups by which those whose prompts must finish come by their numbers, ahead of the others."""
    return group.number if group.prompt.must_finish else math.inf

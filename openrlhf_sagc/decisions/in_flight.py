"""The groups that are dispatched and not yet trained: those that run, and those that were accepted."""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import repeat

from openrlhf_sagc.decisions.records import Group, Prompt, Rollout
from openrlhf_sagc.decisions.step import Step


class GroupsInFlight:
    """Groups between their dispatch and the close of a step, and lengths that the controller has not seen yet.

    `running` holds groups by number, in the order of the steps that dispatched them. `accepted` holds groups with their
    samples. `unobserved` holds the rollouts of every group that is back, until `take_lengths` hands them over. `loads`
    are those of the rollouts that run on each engine, see `Group`. All is counted as it changes, so that a group costs the
    same however many are in flight.
    """

    def __init__(self) -> None:
        self.running: dict[int, Group] = {}
        self.accepted: list[Group] = []
        self.unobserved: list[list[Rollout]] = []
        self.loads: Counter[int] = Counter()
        self._back: dict[int, set[int]] = {}  # of groups that run, by number: places of the rollouts that are back
        self._committed_fresh = 0  # committed groups whose prompts need not finish
        self._committed: set[int] = set()  # numbers
        self._uncommitted_owed: list[Group] = []  # accepted ones whose prompts must finish, a heap by number
        self._uncommitted_fresh: deque[Group] = deque()  # the others, in order of acceptance
        self._dispatched = 0
        self._owed_running: list[int] = []  # numbers of the groups that run and whose prompts must finish, in order
        self._must_finish_accepted = 0

    def __bool__(self) -> bool:
        """Whether any group is in flight."""
        return bool(self.running or self.accepted)

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts of all groups, accepted ones first."""
        return [group.prompt for group in [*self.accepted, *self.running.values()]]

    @property
    def must_finish_running(self) -> int:
        """Number of groups that run and whose prompts must finish."""
        return len(self._owed_running)

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
            if group.prompt.must_finish:
                insort(self._owed_running, group.number)  # nearly always behind the last

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
        if group.prompt.must_finish:
            del self._owed_running[bisect_left(self._owed_running, number)]
        return group

    def accept(self, group: Group, samples: Sequence) -> None:
        """A group that is back may be trained."""
        group = group._replace(samples=samples)
        self.accepted.append(group)
        self._note_uncommitted(group)

    def _note_uncommitted(self, group: Group) -> None:
        """The group is accepted, and may be committed."""
        if group.prompt.must_finish:
            heappush(self._uncommitted_owed, group)
            self._must_finish_accepted += 1
        else:
            self._uncommitted_fresh.append(group)

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
        owed, fresh = self._uncommitted_owed, self._uncommitted_fresh
        while owed and len(self._committed) + bisect_left(self._owed_running, owed[0].number) < step.num_groups:
            committed.append(heappop(owed))
            self._committed.add(committed[-1].number)
        while fresh and self._committed_fresh + self.must_finish < step.num_groups:
            committed.append(fresh.popleft())
            self._committed.add(committed[-1].number)
            self._committed_fresh += 1
        return committed

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
        self.running, self.loads, self._back, self._owed_running = {}, Counter(), {}, []
        self._dispatched = state["dispatched"]
        self.accepted = [
            Group(number, step, Prompt(*prompt), len(samples), len(samples), samples=samples)
            for number, step, prompt, samples in state["accepted"]
        ]
        self._begin_account()
        self.unobserved = [[Rollout(*rollout) for rollout in lengths] for lengths in state["unobserved"]]

    def _begin_account(self) -> None:
        """Count the groups that were accepted before the step, none of which is committed."""
        self._committed, self._committed_fresh, self._must_finish_accepted = set(), 0, 0
        self._uncommitted_owed, self._uncommitted_fresh = [], deque()
        for group in self.accepted:
            self._note_uncommitted(group)

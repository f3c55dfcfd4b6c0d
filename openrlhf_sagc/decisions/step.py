"""One step of the run: its plan, its groups from their draw to their training, and the account of what became of them.

A step is rolled out by `loop.roll_out`, in training and in the simulator alike, and then closed:

    step = planner.begin(queue)
    groups = step.dispatch()                       # and again after every answer of the engines
    for back in step.receive(ended):               # rollouts that have ended; a `Back` is a whole group
        step.judge(back, scores, samples)          # unless it was stopped
    groups = step.commit()                         # if groups are streamed
    step.end()                                     # the controller sees what came back, and chooses the next size
    step.close(keep=..., tokens_of=...)            # `trained` and `unused` are there
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, Protocol, cast

from openrlhf_sagc.decisions.dynamic_sampling import PRIOR_GROUPS, DynamicSampler, Verdict, doubted, groups_to_ask
from openrlhf_sagc.decisions.group_parts import GroupParts, needless
from openrlhf_sagc.decisions.in_flight import InFlight
from openrlhf_sagc.decisions.length_prediction import LengthPredictor, balance, place_whole
from openrlhf_sagc.decisions.places import Places
from openrlhf_sagc.decisions.pool import Pool
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Back, Ended, Fate, Group, Part, Prompt, Rollout, Round
from openrlhf_sagc.decisions.token_weights import PlainSteps, Trained

SHARE = 25  # groups that run for each one that a refill has at least
MOST_STOPS = 2  # of a prompt that must finish; then it is given up


class Policies(Protocol):
    """What a step asks the policies: `StepPlanner`."""

    sampler: DynamicSampler
    predictor: LengthPredictor | None
    num_engines: int
    whole_groups: bool

    def observe(self, step: "Step") -> None:
        """The controller sees `step.lengths`."""

    def weigh(self, step: "Step", groups: Sequence[Trained]) -> PlainSteps | None:
        """What the actors weigh the step by that trains these groups."""
        ...

    def finish(self, step: "Step") -> None:
        """The step is closed."""


@dataclass
class Step:
    """Plan, groups and account of one step. `StepPlanner.begin` makes it; what it leaves in `flight` is the next one's.

    Attributes:
        number: of the step, from 0.
        group_size: members of every group that it dispatches; groups kept from the step before may have another size.
        num_groups: groups that it trains.
        round: how it is rolled out.
        part: of the frame that it draws, if any.
        acceptance_rate: expected share of groups of this size that dynamic sampling keeps.
        max_dispatched: groups that it may dispatch in all.
        rate_groups: how many judged groups the acceptance rate counts as.
        flight: the groups that run and that are accepted.
        queue: of prompts.
        policies: place and judge groups.
        carried_accepted, carried_running: groups of the step before, when it began.
        dispatched: groups that it has dispatched.
        stopped: groups that were stopped before they could be judged.
        unused_tokens: of rollouts that no judged group has.
        verdicts: on the groups that were judged.
        given_up: prompts that will not be drawn again, since their groups never came back.
        lengths: members of every group that came back, once it has ended.
        trained, unused: its groups, once it is closed.
        plain: what the actors weigh it by, once it is closed; None for a plain step.
        pool: of prompts that stay in flight over steps, if any.
        elapsed, generated: seconds from its first dispatch to the last end of a rollout so far, and of its generation.
        ran: groups that came back, stopped ones too, with all their rollouts.
    """

    number: int
    group_size: int
    num_groups: int
    round: Round
    acceptance_rate: float
    max_dispatched: int
    rate_groups: float = PRIOR_GROUPS
    flight: InFlight = field(default_factory=InFlight)
    queue: PromptQueue = field(default=cast(PromptQueue, None), compare=False, repr=False)
    policies: Policies = field(default=cast(Policies, None), compare=False, repr=False)
    dispatched: int = 0
    stopped: int = 0
    unused_tokens: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    given_up: list[Prompt] = field(default_factory=list)
    lengths: list[list[Rollout]] = field(default_factory=list)
    trained: list[Group] = field(default_factory=list)
    unused: list[Group] = field(default_factory=list)
    plain: PlainSteps | None = None
    part: Part | None = None
    pool: Pool | None = None
    elapsed: float = 0.0
    generated: float = 0.0
    ran: list[tuple[Group, list[Rollout]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        running = [parts.group for parts in self.flight.running.values()]
        self.carried_accepted, self.carried_running = len(self.flight.accepted), len(running)
        self._carried_samples = sum(group.size for group in running)
        self._places = Places(self.num_groups, running, self.flight.accepted)
        # Whether groups that only wait for rewards fill it: in a short round, if no filter may drop them. It stops others then.
        self.tells, self._needless = self.round.prompt_ratio > 1 and self.acceptance_rate >= 1, 0
        # Groups that run on though they have enough, and whose others nobody was told to stop yet.
        self._surplus = [parts for parts in self.flight.running.values() if parts.has_enough]

    # --- what it asks for -----------------------------------------------------------------------------------------

    @property
    def has_groups(self) -> bool:
        """Whether groups were there at its beginning or were dispatched since."""
        return self.carried_accepted + self.carried_running + self.dispatched > 0

    @property
    def waits(self) -> bool:
        """Whether the step has to wait for a running group.

        A step that has its groups still waits for prompts that must finish, or the slowest would be put off again and
        again. It also waits for groups of the step before, or they would be trained more than one update late. With a pool
        it waits for those that would become too old instead.
        """
        running = self.flight.running
        if len(self.flight.accepted) < self.num_groups:
            return bool(running)
        if self.pool:
            return self.pool.waits(self.flight, self.queue, self.number, self.num_groups)
        if self._places.must_finish_running:
            return True
        return bool(running) and next(iter(running.values())).group.step < self.number

    def take_surplus(self) -> dict[int, list[int]]:
        """Groups that are needless since the last call: by number, the engine of each rollout that is to be stopped."""
        taken, self._surplus = self._surplus, []
        if self.tells:
            found = needless(self.flight.running.values(), self.num_groups - len(self.flight.accepted))
            taken, self._needless = taken + found, self._needless + len(found)
        return {parts.group.number: parts.left_on for parts in taken if not parts.is_whole}

    def rate(self) -> float:
        """The acceptance rate in the light of this step's verdicts: below the expected one as far as they leave no doubt."""
        kept = len(self.flight.accepted) - self.carried_accepted
        return doubted(self.acceptance_rate, self.rate_groups, len(self.verdicts), kept)

    def groups_to_dispatch(self) -> int:
        """How many groups to dispatch now, so that the accepted and the running ones will fill the step with a margin.

        None until they are one in SHARE of those that run: a call to an engine costs the same for one group and for many.
        """
        accepted, running, wanted = len(self.flight.accepted), len(self.flight.running), 0
        asked = groups_to_ask(self.num_groups - accepted, self.rate()) if accepted < self.num_groups else 0
        if self.pool:
            wanted = running + self.pool.room(
                self.flight, self.queue, self.number, self.num_groups, asked if self.has_groups else 0
            )
        elif asked:
            wanted = max(math.ceil(self.round.prompt_ratio * asked - 1e-9) - self._needless, asked)
        missing = max(min(wanted - running, self.max_dispatched - self.dispatched), 0)
        return missing if missing * SHARE >= running else 0

    def dispatch(self) -> list[Group]:
        """The groups to send to their engines now, which run from now on. Their prompts are drawn here.

        Prompts that must finish are drawn in long rounds alone, and never more of them than are expected to fill the step.
        Engines follow from what runs where, as it is counted here. No engine is asked, which would cost a call to each. With
        a predictor each rollout is placed for itself, unless groups are to stay whole, and the groups come the longest first.
        """
        if not (count := self.groups_to_dispatch()):
            return []
        prompts = self._drawn(count)
        self.dispatched += len(prompts)
        groups = self._placed(prompts)
        self.flight.run_on(groups)
        for group in groups:
            self._places.run(group)
        return groups

    def _drawn(self, count: int) -> list[Prompt]:
        """The prompts of the next groups."""
        if self.part:
            part = None if self.dispatched else self.part
            waits = self.round.prompt_ratio == 1
            return self.queue.draw_part(count, part, must_finish=waits, next_episode_allowed=self.has_groups)
        most = count if self.pool else 0
        if self.round.long and not self.pool:
            needed = int((self.num_groups - len(self.flight.accepted)) / self.acceptance_rate + 1e-9)
            most = max(needed - self._places.must_finish_running, 0)
        return self.queue.draw(count, max_put_back=most, next_episode_allowed=self.has_groups)

    def _placed(self, prompts: list[Prompt]) -> list[Group]:
        """A numbered group for each prompt, with the engine of each rollout, in the order in which they are sent."""
        predictor, rollouts = self.policies.predictor, self.round.rollouts
        loads = [self.flight.loads[engine] for engine in range(self.policies.num_engines)]
        if predictor is None:
            return self._numbered(prompts, place_whole(loads, [rollouts] * len(prompts)), repeat(1))
        expected = [round(predictor.predict(prompt.identity)) for prompt in prompts]
        placed = balance(loads, expected, rollouts, whole=self.policies.whole_groups)
        groups = self._numbered(prompts, [engines for _, engines in sorted(placed)], expected)
        return [groups[place] for place, _ in placed]

    def _numbered(
        self, prompts: Sequence[Prompt], engines: Iterable[tuple[int, ...]], loads: Iterable[int]
    ) -> list[Group]:
        numbers = range(self.flight.dispatched, self.flight.dispatched + len(prompts))
        self.flight.dispatched = numbers.stop
        sizes, rollouts, began = repeat(self.group_size), repeat(self.round.rollouts), repeat(self.elapsed)
        samples, weights = repeat(()), repeat(self.flight.weights)
        steps = repeat(self.number)
        return list(map(Group, numbers, steps, prompts, sizes, rollouts, engines, loads, began, samples, weights))

    # --- what became of its groups --------------------------------------------------------------------------------

    @property
    def samples_rolled_out(self) -> int:
        """Members of all groups, those carried over included; at least as many as a step without any drop has."""
        return max(self._carried_samples + self.dispatched * self.group_size, self.num_groups * self.group_size)

    @property
    def dropped(self) -> Counter[str]:
        """Groups that were dropped, by reason."""
        return Counter(verdict.reason for verdict in self.verdicts if verdict.reason is not None)

    @property
    def pass_rate(self) -> float | None:
        """Share of the judged groups that were kept, in %; None if no group was judged."""
        if not self.verdicts:
            return None
        return 100 * sum(verdict.reason is None for verdict in self.verdicts) / len(self.verdicts)

    def receive(self, ended: Iterable[Ended]) -> list[Back]:
        """These rollouts have ended: the groups that they make whole.

        A group of which a member was stopped has its fate: its prompt is put back or given up. The others are to be judged.
        """
        whole = []
        for number, place, response in ended:
            parts = self.flight.running[number]
            if response is None:
                parts.generated.add(place)
                continue
            had_enough, began, rollout = parts.has_enough, parts.group.began, response[ROLLOUT]
            parts.put(place, response)
            self.elapsed = max(self.elapsed, began + rollout.seconds)
            self.generated = max(self.generated, began + rollout.generated)
            self.flight.loads[parts.group.engines[place]] -= parts.group.load
            if parts.is_whole:
                whole.append(self._take_back(parts))
            elif parts.has_enough and not had_enough and not parts.is_stopping:
                self._surplus.append(parts)
        return whole

    def _take_back(self, parts: GroupParts) -> Back:
        """The group runs no more."""
        group, places = parts.group, parts.members
        del self.flight.running[group.number]
        self._places.end(group)
        rollouts = [response[ROLLOUT] for response in parts.responses]
        members = [rollouts[place] for place in places]
        self.flight.unobserved.append(members)
        predictor = self.policies.predictor
        if predictor:
            unfinished = [not member.finished for member in members]
            is_fair = not group.prompt.must_finish or self.part is not None and not self.round.long
            tokens = [member.tokens for member in members]
            predictor.observe(group.prompt.identity, tokens, unfinished, is_fair=is_fair)
        self.ran.append((group, rollouts))
        fate, unused = None, rollouts
        if any(member.stopped for member in members):
            fate = self._put_back(group.prompt)
        else:
            unused = [rollouts[place] for place in {*range(len(rollouts))}.difference(places)]
        self.unused_tokens += sum(rollout.tokens for rollout in unused)
        return Back(group, rollouts, parts.responses, places, fate)

    def _put_back(self, prompt: Prompt) -> Fate:
        """The group of this prompt was stopped."""
        self.stopped += 1
        prompt = prompt._replace(stops=prompt.stops + prompt.must_finish)
        if prompt.stops < MOST_STOPS:
            self.queue.put_back(prompt)
            return Fate.PUT_BACK
        self.given_up.append(prompt)
        return Fate.GIVEN_UP

    def judge(self, back: Back, scores_R: Sequence[float | None], samples: Sequence[Any]) -> Fate:
        """Keep the group with those of its samples that have a score for training, or drop it."""
        verdict = self.policies.sampler.judge(scores_R, partial(back.candidate, scores_R))
        self.verdicts.append(verdict)
        if verdict.reason is not None:
            return Fate.DROPPED
        group = back.group._replace(samples=[x for x, score in zip(samples, scores_R) if score is not None])
        self.flight.accepted.append(group)
        self._places.accept(group)
        return Fate.KEPT

    def commit(self) -> list[Group]:
        """Accepted groups that the step trains whatever else comes back; each is given once."""
        return self._places.take()

    def end(self) -> None:
        """No group comes back in this step any more."""
        self.lengths, self.flight.unobserved = self.flight.unobserved, []
        self.policies.observe(self)

    def close(self, *, keep: bool, tokens_of: Callable[[Group], int]) -> None:
        """Choose the groups that it trains, and put the prompts of the others back.

        Committed ones are trained, then those whose prompts must finish, then the others by their numbers.

        Args:
            keep: accepted groups of this very step that it does not need stay for the next one; with a pool all do.
            tokens_of: a trained group's, over which its loss is a mean.
        """
        pool, committed = self.pool, self._places.taken
        groups = (
            pool.order(self.flight.accepted)
            if pool
            else sorted(
                self.flight.accepted,
                key=lambda group: (group.number not in committed, not group.prompt.must_finish, group.number),
            )
        )
        self.trained, surplus = groups[: self.num_groups], groups[self.num_groups :]
        self.flight.accepted = [group for group in surplus if pool or keep and group.step == self.number]
        self.unused = [] if pool else [group for group in surplus if not keep or group.step < self.number]
        self.queue.put_back_unused([group.prompt for group in self.unused])
        self.plain = self.policies.weigh(
            self, [Trained(tokens_of(group), len(group.samples)) for group in self.trained]
        )
        self.policies.finish(self)

"""Runs of the scheduler's pure parts on engines that return groups in random order."""

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.in_flight import GroupsInFlight
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Group, Rollout
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

EPISODES, ENGINES = 3, 3


class Source:
    """Prompts "0", "1", ... of every episode in an order of its own; its state is the episode and the place in it."""

    def __init__(self, count):
        self.count, self.episode, self.place = count, 0, 0

    def begin(self, episode):
        self.episode, self.place = episode, 0

    def resume(self):
        pass

    def take(self, count):
        order = random.Random(self.episode).sample(range(self.count), self.count)
        taken = order[self.place : self.place + count]
        self.place += len(taken)
        return [(str(prompt), "label", None) for prompt in taken], len(taken) < count


@dataclass
class Chances:
    """How often a group has no signal, a reward fails, a rollout is long, and one has finished when it is stopped."""

    drop: float
    fail: float
    straggle: float
    outrun: float


@dataclass
class Run:
    """The verbs of training on engines that return groups in random order."""

    planner: StepPlanner
    source: Source
    chances: Chances
    rng: random.Random
    keep_surplus: bool
    streams: bool
    filters: bool
    flight: GroupsInFlight = field(default_factory=GroupsInFlight)
    trained: Counter = field(default_factory=Counter)  # of (prompt, episode)
    dropped: Counter = field(default_factory=Counter)
    unobserved: int = 0  # groups that are back and that the controller has not seen

    def __post_init__(self):
        self.queue = PromptQueue(self.source)

    def step(self) -> tuple[Step, list[Group], list[Group]] | None:
        """A step with its trained and unused groups; None where the data or the cap end it."""
        planner, flight, queue = self.planner, self.flight, self.queue
        step = planner.plan(flight, queue)
        self.dispatch(step)
        if not flight:
            return None
        committed = self.commit(step)
        while flight.waits_for(step):
            number = self.rng.choice(list(flight.running))
            self.take_back(step, number, finished=1.0)
            self.dispatch(step)
            committed += self.commit(step)
        check_account(self, step)
        if not self.keep_surplus:
            self.stop(step)
        lengths = flight.take_lengths()
        planner.observe(step, lengths)
        assert len(lengths) == self.unobserved
        self.unobserved = 0
        check_account(self, step)
        if len(flight.accepted) < step.num_groups:
            return None
        trained, unused = flight.close(step, keep=self.keep_surplus)
        queue.put_back_unused([group.prompt for group in unused])
        planner.finish(step, waiting=len(queue))
        assert len(set(committed)) == len(committed) and set(committed) <= {group.number for group in trained}
        self.trained.update((group.prompt.text, group.prompt.episode) for group in trained)
        return step, trained, unused

    def dispatch(self, step):
        prompts = self.planner.draw(step, self.flight, self.queue)
        groups = self.planner.dispatch(step, self.flight, prompts)
        assert sorted(group.prompt for group in groups) == sorted(prompts)
        for group in groups:
            assert len(group.engines) == step.round.rollouts and set(group.engines) <= set(range(ENGINES))
            assert self.planner.predictor or len(set(group.engines)) == 1

    def commit(self, step):
        """Numbers of the groups that may be trained from now on."""
        return [group.number for group in self.flight.commit(step)] if self.streams else []

    def stop(self, step):
        for number in list(self.flight.running):
            self.take_back(step, number, finished=self.chances.outrun)

    def take_back(self, step, number, finished):
        """A group is back of which each rollout has finished with this chance; the others were stopped."""
        rng, chances = self.rng, self.chances
        rollouts = []
        for _ in range(self.flight.running[number].rollouts):
            tokens = rng.randint(1, 20) * (10 if rng.random() < chances.straggle else 1)
            done = rng.random() < finished
            failure = "E" if done and rng.random() < chances.fail else None
            rollouts.append(Rollout(tokens, float(tokens), 0.0, done, not done, failure))
        self.unobserved += 1
        group, members, was_stopped = self.planner.receive(step, self.flight, self.queue, number, rollouts)
        assert len(members) == group.size and was_stopped == any(rollouts[place].stopped for place in members)
        if not was_stopped:
            constant = rng.random() < chances.drop
            scores = [None if rollouts[p].failure else float(constant or i % 2) for i, p in enumerate(members)]
            self.planner.judge(step, self.flight, group, scores, [rollouts[place].tokens for place in members])
            if step.verdicts[-1].reason:
                self.dropped[group.prompt.text, group.prompt.episode] += 1


def check_account(run, step):
    """Every group that was carried over or dispatched is in one place."""
    flight, judged = run.flight, Counter(verdict.reason for verdict in step.verdicts)
    assert step.carried_running + step.dispatched == len(step.verdicts) + step.stopped + len(flight.running)
    assert len(flight.accepted) == step.carried_accepted + judged[None]
    assert step.dispatched <= step.max_dispatched
    assert flight.must_finish == sum(prompt.must_finish for prompt in flight.prompts)
    for engine in range(ENGINES):
        expected = sum(g.load * g.engines.count(engine) for g in flight.running.values())
        assert flight.loads[engine] == expected


@st.composite
def runs(draw, keep_surplus=st.booleans()):
    """make() -> a Run; twice the same."""
    sizes = draw(st.sampled_from([(4,), (8,), (2, 4), (4, 8), (2, 4, 8)]))
    keep = draw(keep_surplus)
    tail = not keep and draw(st.booleans())
    ratios = {name: draw(st.sampled_from([1.0, 1.25, 2.0])) for name in ("prompt_ratio", "response_ratio")}
    chances = Chances(*(draw(st.sampled_from([0.0, 0.1, 0.4])) for _ in range(4)))
    filtering, predicts, hold = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(["samples", "prompts"]))
    prompts, seed, streams = draw(st.integers(8, 60)), draw(st.integers(0, 10**6)), draw(st.booleans())

    def make():
        planner = StepPlanner(
            StragglerAwareGroupController(sizes, max_straggler_rate=0.2),
            DynamicSampler(tolerance=1e-6 if filtering else None, max_gen_batches=20),
            TailBatcher(**ratios) if tail else NoTailBatching(),
            LengthPredictor() if predicts else None,
            hold=hold,
            samples=32,
            prompts=4,
            signal="tokens",
            num_engines=ENGINES,
        )
        return Run(planner, Source(prompts), chances, random.Random(seed), keep, streams, filtering)

    return make

"""Runs of the scheduler's pure parts on engines that return groups in random order."""

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st

from openrlhf_sagc.decisions.best_rounds import BestRounds
from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.loop import roll_out, stop
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Ended, Fate, Group, Rollout
from openrlhf_sagc.decisions.sorted_steps import SortedSteps
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

EPISODES, ENGINES = 3, 3


class Source:
    """Prompts "0", "1", ... of every episode in an order of its own; its state is the episode and the place in it."""

    def __init__(self, count):
        self.count, self.size, self.episode, self.place = count, count, 0, 0

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
    """Trainer and engines of the step's loop, whose rollouts end in random order."""

    planner: StepPlanner
    source: Source
    chances: Chances
    rng: random.Random
    keep_surplus: bool
    streams: bool
    filters: bool
    sorts: bool = False
    trained: Counter = field(default_factory=Counter)  # of (prompt, episode)
    dropped: Counter = field(default_factory=Counter)
    unobserved: int = 0  # groups that are back and that the controller has not seen

    def __post_init__(self):
        self.queue = PromptQueue(self.source)

    def step(self) -> tuple[Step, list[Group], list[Group]] | None:
        """A step with its trained and unused groups; None where the data or the cap end it."""
        step = self.planner.begin(self.queue)
        groups = step.dispatch()
        if not groups and not self.flight:
            return None
        self.committed, self.late = [], set()
        roll_out(step, groups, self, self)
        check_account(self, step)
        if not self.keep_surplus:
            stop(step, self, self)
        step.end()
        assert len(step.lengths) == self.unobserved
        self.unobserved = 0
        check_account(self, step)
        if len(self.flight.accepted) < step.num_groups:
            return None
        step.close(keep=self.keep_surplus, tokens_of=lambda group: sum(group.samples))
        assert len(set(self.committed)) == len(self.committed)
        assert set(self.committed) <= {group.number for group in step.trained}
        self.trained.update((group.prompt.text, group.prompt.episode) for group in step.trained)
        return step, step.trained, step.unused

    @property
    def flight(self):
        return self.planner.flight

    # --- the engines

    def dispatch(self, groups):
        for group in groups:
            assert len(group.engines) == group.rollouts and set(group.engines) <= set(range(ENGINES))
            assert self.planner.predictor or len(set(group.engines)) == 1

    def stop_surplus(self, groups):
        for number, engines in groups.items():
            assert number not in self.late and engines == self.flight.running[number].left_on and engines
        self.late |= groups.keys()

    def ended(self):
        """A group comes back at random, and what is to be stopped is."""
        enough = {number for number, parts in self.flight.running.items() if parts.has_enough}
        assert enough <= self.late
        if late := enough & self.late:
            number = self.rng.choice(sorted(late))
            left = [p for p, answer in enumerate(self.flight.running[number].responses) if answer is None]
            return [
                self._ended(number, place, self.chances.outrun) for place in left[: self.rng.randint(1, len(left))]
            ]
        number = self.rng.choice(list(self.flight.running))
        left = [p for p, answer in enumerate(self.flight.running[number].responses) if answer is None]
        self.rng.shuffle(left)
        return [self._ended(number, place, 1.0) for place in left[: self.rng.randint(1, len(left))]]

    def stop(self):
        for number, parts in list(self.flight.running.items()):
            left = [place for place, answer in enumerate(parts.responses) if answer is None]
            yield [self._ended(number, place, self.chances.outrun) for place in left]

    def _ended(self, number, place, finished):
        """A rollout that has finished with this chance; else it was stopped."""
        rng, chances = self.rng, self.chances
        tokens = rng.randint(1, 20) * (10 if rng.random() < chances.straggle else 1)
        done = rng.random() < finished
        failure = "E" if done and rng.random() < chances.fail else None
        return Ended(number, place, {ROLLOUT: Rollout(tokens, float(tokens), 0.0, done, not done, failure)})

    # --- the trainer

    def look_on(self, step):
        if self.streams:
            self.committed += [group.number for group in step.commit()]

    def wait_on(self, step):
        raise AssertionError("a rollout always ends")

    def take_back(self, step, back):
        rng, members, rollouts = self.rng, back.members, back.rollouts
        self.unobserved += 1
        was_stopped = any(rollouts[place].stopped for place in members)
        assert len(members) == back.group.size and (back.fate in (Fate.PUT_BACK, Fate.GIVEN_UP)) == was_stopped
        if not was_stopped:
            constant = rng.random() < self.chances.drop
            scores = [None if rollouts[p].failure else float(constant or i % 2) for i, p in enumerate(members)]
            fate = step.judge(back, scores, [rollouts[place].tokens for place in members])
            if fate is Fate.DROPPED:
                self.dropped[back.group.prompt.text, back.group.prompt.episode] += 1


def check_account(run, step):
    """Every group that was carried over or dispatched is in one place."""
    flight, judged = run.flight, Counter(verdict.reason for verdict in step.verdicts)
    assert step.carried_running + step.dispatched == len(step.verdicts) + step.stopped + len(flight.running)
    assert len(flight.accepted) == step.carried_accepted + judged[None]
    assert step.dispatched <= step.max_dispatched
    for engine in range(ENGINES):
        expected = sum(parts.group.load * parts.left_on.count(engine) for parts in flight.running.values())
        assert flight.loads[engine] == expected


@st.composite
def runs(draw, keep_surplus=st.booleans()):
    """make() -> a Run; twice the same."""
    sizes = draw(st.sampled_from([(4,), (8,), (2, 4), (4, 8), (2, 4, 8)]))
    keep = draw(keep_surplus)
    tail = None if keep else draw(st.sampled_from([None, "stop", "pool", "sort", "auto"]))
    ratios = {name: draw(st.sampled_from([1.0, 1.25, 2.0])) for name in ("prompt_ratio", "response_ratio")}
    chances = Chances(*(draw(st.sampled_from([0.0, 0.1, 0.4])) for _ in range(4)))
    filtering, predicts, hold = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(["samples", "prompts"]))
    prompts, seed, streams = draw(st.integers(8, 60)), draw(st.integers(0, 10**6)), draw(st.booleans())

    sorts = min(ratios["prompt_ratio"], 1.05)
    batchers = {
        None: NoTailBatching,
        "stop": lambda: TailBatcher(**ratios),
        "pool": lambda: TailBatcher(**ratios, pool=3, seed=seed),
        "sort": lambda: SortedSteps(prompt_ratio=sorts, seed=seed),
        "auto": lambda: BestRounds(prompt_ratio=sorts, seed=seed),
    }

    def make():
        planner = StepPlanner(
            StragglerAwareGroupController(sizes, max_straggler_rate=0.2),
            DynamicSampler(tolerance=1e-6 if filtering else None, max_gen_batches=20),
            batchers[tail](),
            LengthPredictor() if predicts else None,
            hold=hold,
            samples=32,
            prompts=4,
            signal="tokens",
            num_engines=ENGINES,
        )
        return Run(
            planner,
            Source(prompts),
            chances,
            random.Random(seed),
            keep,
            streams,
            filtering,
            tail in ("pool", "sort", "auto"),
        )

    return make

"""Prompts that stay in flight over steps: every one is trained once, none of them too late, whatever ends first."""

import json
import random
from collections import Counter, deque

from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import Source

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.loop import put_back_rest, roll_out
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.pool import Pool
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Ended, Rollout
from openrlhf_sagc.decisions.tail_batching import NoTailBatching

GROUPS, SIZE, ENGINES = 4, 2, 2


class Run:
    """A generator whose trainer is up to `queue` steps behind; lengths of prompts have a long tail.

    A rollout ends when as many ticks are over as it has tokens; a step's training takes `train` ticks.
    """

    def __init__(self, pool, queue, count, seed, drop=0.0, train=5):
        self.pool, self.rng, self.drop, self.train, self.lag = pool, random.Random(seed), drop, train, queue
        self.planner = StepPlanner(
            StragglerAwareGroupController((SIZE,)),
            DynamicSampler(max_gen_batches=1000),
            NoTailBatching(),
            None,
            hold="prompts",
            samples=GROUPS * SIZE,
            prompts=GROUPS,
            signal="tokens",
            num_engines=ENGINES,
            pool=pool,
        )
        self.source = Source(count)
        self.queue = PromptQueue(self.source)
        self.now, self.trainings = 0, deque()  # ticks, and those at which queued steps will be trained
        self.events: list[tuple[int, int, int]] = []  # when rollouts end: (tick, group, place)
        self.trained, self.dropped, self.rolled_out, self.ages, self.most = Counter(), Counter(), Counter(), [], 0

    def dispatch(self, groups):
        for group in groups:
            self.rolled_out[group.prompt[0], group.prompt.episode] += 1
            for place in range(group.rollouts):
                tokens = 60 if self.rng.random() < 0.04 else self.rng.randint(1, 5)
                self.events.append((self.now + tokens, group.number, place))
        self.most = max(self.most, len(self.planner.flight.running))

    def ended(self):
        end, number, place = event = min(self.events)
        self.events.remove(event)
        self._pass_to(max(end, self.now))
        return [Ended(number, place, {ROLLOUT: Rollout(end, float(end), 0.0, True, False, None)})]

    def _pass_to(self, tick):
        self.now = tick
        while self.trainings and self.trainings[0] <= tick:
            self.trainings.popleft()
            self.planner.flight.weights += 1

    def stop(self):
        events, self.events = self.events, []
        yield [Ended(n, p, {ROLLOUT: Rollout(0, 0.0, 0.0, False, True, None)}) for _, n, p in events]

    def stop_surplus(self, groups):
        assert not groups

    def look_on(self, step):
        pass

    def wait_on(self, step):
        raise AssertionError("a rollout always ends")

    def take_back(self, step, back):
        if back.fate is None:
            dropped = self.rng.random() < self.drop
            if dropped:
                self.dropped[back.group.prompt[0], back.group.prompt.episode] += 1
            step.judge(back, [0.0, float(not dropped)], ["a", "b"])

    def step(self):
        """A step as the generator makes it; None at the end of the run."""
        if self.queue.episode > self.pool.episodes:
            return None
        if len(self.trainings) > self.lag:  # it waits for the trainer to take a step
            self._pass_to(self.trainings[-self.lag - 1])
        planner = self.planner
        step = planner.begin(self.queue)
        groups = step.dispatch()
        if not groups and not planner.flight:
            assert self.queue.close_episode([])  # or the trainer would ask for ever
            return self.step()
        roll_out(step, groups, self, self)
        step.end()
        step.close(keep=True, tokens_of=lambda group: 1)
        assert len(step.trained) == GROUPS
        self.trained.update((group.prompt[0], group.prompt.episode) for group in step.trained)
        self.ages += [step.number - group.weights for group in step.trained]
        begins = self.trainings[-1] if self.trainings else self.now
        self.trainings.append(max(begins, self.now) + self.train)
        if self.pool.is_over(planner.flight, self.queue):
            put_back_rest(step, self)
        self.queue.close_episode(planner.flight.prompts)
        return step

    def resumed(self, episodes=2):
        """A run of so many episodes that goes on from this one's state."""
        state = json.loads(json.dumps(self.state()))
        place = self.source.episode, self.source.place
        other = Run(
            self.pool._replace(episodes=episodes),
            self.lag,
            self.source.count,
            self.rng.random(),
            self.drop,
            self.train,
        )
        other.planner.load_state_dict(state)
        other.queue.load_state_dict(state)
        other.planner.flight.weights = other.planner.steps
        other.source.episode, other.source.place = place
        other.trained, other.dropped = self.trained.copy(), self.dropped.copy()
        return other

    def state(self):
        return {**self.queue.state_dict(self.planner.flight.running_prompts), **self.planner.state_dict()}

    def check(self):
        done, episodes = self.trained + self.dropped, range(1, self.pool.episodes + 1)
        of_run = {(str(prompt), episode) for prompt in range(self.source.count) for episode in episodes}
        assert {key: count for key, count in done.items() if key[1] in episodes} == dict.fromkeys(of_run, 1)
        assert max(self.ages, default=0) <= self.pool.max_age


@st.composite
def runs(draw):
    queue = draw(st.integers(1, 2))
    oldest = draw(st.integers(queue, 5))
    prompts = draw(st.integers(GROUPS, (oldest + 1) * GROUPS))
    drop, train = draw(st.sampled_from([0.0, 0.4])), draw(st.sampled_from([0, 5, 80]))
    return Run(Pool(prompts, oldest, 2), queue, draw(st.integers(1, 30)), draw(st.integers(0, 9999)), drop, train)


@settings(max_examples=150, deadline=None)
@given(runs())
def test_every_prompt_is_trained_once_and_none_too_late(run):
    while run.step():
        pass
    run.check()
    # Before the last prompts of the run, it dispatches none twice, and no more than are to be in flight.
    assert run.most <= run.pool.prompts + GROUPS


@settings(max_examples=80, deadline=None)
@given(runs(), st.integers(1, 6))
def test_a_run_that_is_killed_and_resumed_trains_every_prompt_once(run, killed_at):
    for _ in range(killed_at):
        if run.step() is None:
            return
    run = run.resumed()
    while run.step():
        pass
    run.check()


def test_short_groups_do_not_wait_for_a_long_one_until_it_would_be_too_old():
    run = Run(Pool(2 * GROUPS, 3, 2), 1, 40, 0, train=0)
    while run.step():
        pass
    run.check()
    assert Counter(run.ages)[3] and sum(run.ages) / len(run.ages) < 2
    assert run.most == 2 * GROUPS


def test_a_run_without_filter_rolls_every_prompt_out_once():
    run = Run(Pool(3 * GROUPS, 4, 2), 1, 10 * GROUPS, 1)
    while run.step():
        pass
    assert set(run.rolled_out.values()) == {1} and len(run.rolled_out) == 20 * GROUPS


@settings(max_examples=80, deadline=None)
@given(runs())
def test_a_run_that_is_over_goes_on_with_more_episodes(run):
    """Its last step may have been filled up with prompts of the next one, some of which came back before they were needed."""
    while run.step():
        pass
    run = run.resumed(episodes=3)
    while run.step():
        pass
    run.check()

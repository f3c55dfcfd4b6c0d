"""What a step is planned to be, and which prompts it draws."""

import json

import pytest
from random_runs import Source

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import ROLLOUT, Ended, Part, Prompt, Rollout, Round
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.step_model import StepModel
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher


@pytest.mark.parametrize("hold, num_groups", [("samples", 8), ("prompts", 4)])
def test_a_plan_follows_the_policies(hold, num_groups):
    controller, sampler = StragglerAwareGroupController([4]), DynamicSampler(max_gen_batches=3)
    settings = dict(hold=hold, samples=32, prompts=4, signal="tokens", num_engines=1)
    planner = StepPlanner(controller, sampler, TailBatcher(prompt_ratio=1.5, response_ratio=1.25), None, **settings)
    step = planner.begin(PromptQueue(Source(9)))
    assert step == Step(0, 4, num_groups, Round(False, 1.5, 5), sampler.acceptance_rate(4), 3 * num_groups)


@pytest.mark.parametrize(("right", "most"), [(0.5, 4), (0.0, 40)])
def test_a_long_round_draws_as_many_waiting_prompts_as_are_expected_to_fill_it(right, most):
    """At an acceptance rate of about 1 those that the step trains, at a low one many more."""
    planner = StepPlanner(
        StragglerAwareGroupController([32]),
        DynamicSampler(max_gen_batches=1000),
        TailBatcher(response_ratio=1.0),
        None,
        hold="prompts",
        samples=0,
        prompts=4,
        signal="tokens",
        num_engines=1,
    )
    queue = PromptQueue(Source(200))
    scores = [1.0] * int(32 * right) + [0.0] * (32 - int(32 * right))
    planner.sampler.observe([planner.sampler.judge(scores)] * 200)
    for prompt in queue.draw(60, max_put_back=0, next_episode_allowed=False):
        queue.put_back(prompt)
    step = planner.begin(queue)
    assert step.round.long
    drawn = [group.prompt for group in step.dispatch()]
    owed = [prompt for prompt in drawn if prompt.must_finish]
    assert len(owed) == min(60, int(4 / step.acceptance_rate)) and (len(owed) <= 4 if most == 4 else len(owed) > most)
    assert not any(group.prompt.must_finish for group in step.dispatch())


def test_a_later_episode_begins_with_what_history_foretells_of_prompts_that_have_one(monkeypatch):
    """Until groups of that episode are seen; a run that goes on begins so too."""
    predictor, batcher, seen = LengthPredictor(), NoTailBatching(), []
    decide = batcher.decide
    monkeypatch.setattr(batcher, "decide", lambda *words: seen.append(words[-1].explained) or decide(*words))
    settings = dict(hold="prompts", samples=0, prompts=4, signal="tokens", num_engines=1)
    planner = StepPlanner(StragglerAwareGroupController([4]), DynamicSampler(), batcher, predictor, **settings)
    queue = PromptQueue(Source(200))
    for episode, names in ((1, "a"), (2, "a"), (2, "b"), (3, "a")):
        queue.episode = episode
        planner.begin(queue)
        for prompt in range(64):
            predictor.observe(f"{names}{prompt}", [10.0 + prompt, 11.0 + prompt], [False] * 2)
    assert seen[0] == 0 and seen[1] > 0.8 and seen[2] > 0.8 and seen[3] > 0.8
    planner.begin(queue)
    assert seen[4] > 0.8
    for prompt in range(640):
        predictor.observe(f"c{prompt}", [10.0, 11.0], [False] * 2)
    planner.begin(queue)
    assert seen[5] < 0.2


@pytest.mark.parametrize("known", [True, False])
def test_an_evaluation_says_something_of_prompts_that_are_trained(known):
    settings = dict(hold="prompts", samples=0, prompts=4, signal="tokens", num_engines=1)
    predictor = LengthPredictor()
    planner = StepPlanner(StragglerAwareGroupController([4]), DynamicSampler(), TailBatcher(), predictor, **settings)
    for name in ["a"] * known + ["b"]:
        predictor.observe(Prompt(name, "label", None, 1).identity, [100.0] * 4, [False] * 4)
    planner.evaluated("a", "label", [Rollout(900, 1.0, 0.0, True, False, None)] * 4)
    assert (predictor.predict(Prompt("a", "label", None, 1).identity) > 200) == known
    planner.predictor = None
    planner.evaluated("a", "label", [])


def test_a_frame_ends_with_its_long_round(monkeypatch):
    """Or with the last of its sorted steps: then alone the group size may grow."""
    settings = dict(hold="prompts", samples=0, prompts=4, signal="tokens", num_engines=1)
    controller = StragglerAwareGroupController([4])
    planner = StepPlanner(controller, DynamicSampler(), TailBatcher(), None, **settings)
    ends: list[bool] = []
    monkeypatch.setattr(controller, "observe", lambda lengths, frame_ends, **_: ends.append(frame_ends))
    for long, ratio, part in (
        (False, 1.25, None),
        (True, 1.0, None),
        (False, 1.0, Part(0, 2)),
        (False, 1.02, Part(0, 1)),
        (False, 1.0, None),
    ):
        planner.observe(Step(0, 4, 4, Round(long, ratio, 4), 1.0, 4, part=part))
    assert ends == [False, True, False, True, True]


def test_prompts_of_a_frame_that_is_over_wait_like_those_that_were_put_back():
    """Or an episode that has no others would begin a short round, which finds none."""
    settings = dict(hold="prompts", samples=0, prompts=4, signal="tokens", num_engines=1)
    seen = []

    class Watches(NoTailBatching):
        def decide(self, num_groups, group_size, outlook):
            seen.append((outlook.waiting, outlook.is_frame_over))
            return Round(True, 1.0, group_size)

    planner = StepPlanner(StragglerAwareGroupController([4]), DynamicSampler(), Watches(), None, **settings)
    rate = planner.sampler.acceptance_rate(4)
    for left in (1, 8):
        queue = PromptQueue(Source(9))
        queue.frame.fill(queue.draw(left, max_put_back=0, next_episode_allowed=True), lambda prompt: 1.0)
        planner.begin(queue)
    assert rate < 1 and seen == [(1, True), (0, False)]


def test_a_step_tells_when_its_groups_began_and_how_long_it_took():
    """From the rollouts alone: a group that replaces another one begins when that came back."""
    settings = dict(hold="prompts", samples=0, prompts=2, signal="tokens", num_engines=1)
    sampler = DynamicSampler(max_gen_batches=1000)
    planner = StepPlanner(StragglerAwareGroupController([2]), sampler, NoTailBatching(), None, **settings)
    step = planner.begin(PromptQueue(Source(50)))
    first, later = step.dispatch(), []
    assert {group.began for group in first} == {0.0} and step.elapsed == 0.0
    for number, group in enumerate(first):
        rollout = Rollout(5, 10.0 + number, 1.0, True, False, None)
        for back in step.receive([Ended(group.number, place, {ROLLOUT: rollout}) for place in range(2)]):
            step.judge(back, [0.0, 0.0], [5, 5])
        later += [(step.elapsed, more) for more in step.dispatch()]
    assert later and all(more.began == elapsed >= 10.0 for elapsed, more in later)
    assert step.elapsed == 9.0 + len(first) and [group for group, _ in step.ran] == first
    last = later[0][1]
    step.receive([Ended(last.number, place, {ROLLOUT: rollout._replace(seconds=99.0)}) for place in range(2)])
    assert step.elapsed == last.began + 99.0


def test_waits_for_rewards_are_a_term_of_their_own_in_the_forecasts_of_all_sizes():
    """Of two runs, one waits 90 s for rewards at the end of each step; all else is the same."""
    forecasts, outlooks = {}, {}
    for waited in (0.0, 90.0):

        class Watches(NoTailBatching):
            def decide(self, num_groups, group_size, outlook):
                outlooks[waited] = outlook
                return super().decide(num_groups, group_size, outlook)

        controller = StragglerAwareGroupController([2, 4])
        settings = dict(hold="samples", samples=8, prompts=4, signal="seconds", num_engines=1)
        of_model = dict(step_model=StepModel(1), group_sizes=[2, 4])
        planner = StepPlanner(controller, DynamicSampler(tolerance=None), Watches(), None, **settings, **of_model)
        observe, shown, queue = controller.observe, [], PromptQueue(Source(50))
        controller.observe = lambda groups, **more: shown.append((groups, more)) or observe(groups, **more)
        for _ in range(3):
            step = planner.begin(queue)
            for group in step.dispatch():
                rollout = Rollout(7, 10.0 + waited, 1.0, True, False, None, reward_seconds=waited)
                ended = [Ended(group.number, place, {ROLLOUT: rollout}) for place in range(group.size)]
                for back in step.receive(ended):
                    step.judge(back, [0.0] * group.size, [7] * group.size)
            step.end()
            planner.timed(20.0 + waited)
            step.close(keep=False, tokens_of=lambda group: 28)
            assert (step.elapsed, step.generated) == (10.0 + waited, 10.0)
        groups, found = shown[-1][0], shown[-1][1]["forecasts"]
        assert {length for lengths in groups for length in lengths} == {9.0}
        forecasts[waited] = [forecast.seconds for forecast in found]
    assert [slow - quick for slow, quick in zip(forecasts[90.0], forecasts[0.0])] == pytest.approx([90.0, 90.0])
    assert outlooks[0.0].rewards == 0.0 and outlooks[90.0].rewards == pytest.approx(90.0)
    planner.load_state_dict(json.loads(json.dumps(planner.state_dict())))
    assert planner.begin(queue) and outlooks[90.0].rewards == pytest.approx(90.0)


def test_a_batcher_hears_that_no_prompt_is_left_before_a_draw_gets_none():
    """A short round that learned it from drawing none would leave those that wait without a step."""
    settings = dict(hold="prompts", samples=0, prompts=4, signal="tokens", num_engines=1)
    seen = []

    class Watches(NoTailBatching):
        def decide(self, num_groups, group_size, outlook):
            seen.append(outlook)
            return Round(True, 1.0, group_size)

    sampler = DynamicSampler(max_gen_batches=1)
    planner, queue = StepPlanner(
        StragglerAwareGroupController([4]), sampler, Watches(), None, **settings
    ), PromptQueue(Source(8))
    planner.begin(queue)
    first, *_ = queue.draw(8, max_put_back=0, next_episode_allowed=False)
    queue.put_back(first)
    planner.begin(queue)
    assert [outlook.drained for outlook in seen] == [False, True] and seen[1].waiting == 1
    assert sampler.acceptance_rate(4) < 1 and seen[0].rate == 1  # a step dispatches no more than one batch

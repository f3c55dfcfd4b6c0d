"""What a step is planned to be, and which prompts it draws."""

import pytest
from random_runs import Source

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Part, Prompt, Rollout, Round
from openrlhf_sagc.decisions.step import Step
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
    monkeypatch.setattr(controller, "observe", lambda lengths, running, forecasts, may_change: ends.append(may_change))
    for long, ratio, part in (
        (False, 1.25, None),
        (True, 1.0, None),
        (False, 1.0, Part(0, 2)),
        (False, 1.02, Part(0, 1)),
        (False, 1.0, None),
    ):
        planner.observe(Step(0, 4, 4, Round(long, ratio, 4), 1.0, 4, part=part))
    assert ends == [False, True, False, True, True]


def test_the_idle_tail_of_plain_steps_is_a_mean_that_one_odd_step_does_not_decide():
    """Of each step half runs on for a share of it; short rounds stop what would show the tail, and count for nothing."""
    settings = dict(hold="prompts", samples=0, prompts=4, signal="tokens", num_engines=1)
    seen = []

    class Watches(NoTailBatching):
        def decide(self, num_groups, group_size, outlook):
            seen.append(outlook.idle_tail)
            return Round(len(seen) != 2, 1.0, group_size)

    planner = StepPlanner(StragglerAwareGroupController([4]), DynamicSampler(), Watches(), None, **settings)
    for last in (2.0, 9.0, 4.0, 4.0):
        step = planner.begin(PromptQueue(Source(9)))
        ends = (1.0, 1.0, 1.0, last)
        step.lengths = [[Rollout(1, end, 0.0, True, False, None) for end in ends]]
        planner.observe(step)
    assert seen == [None, 0.5, 0.5, pytest.approx((0.5 + 0.75) / 2)]

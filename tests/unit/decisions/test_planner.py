"""What a step is planned to be, and which prompts it draws."""

import pytest
from random_runs import Source

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.decisions.records import Round
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.decisions.tail_batching import TailBatcher


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

"""The policy that docs/architecture.md adds works in the scheduler's parts, as it says."""

import json
import re

from cpu_stack import ROOT
from simulation.costs import CostModel
from simulation.lengths import LogNormal
from simulation.training import SimulatedTraining

from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.planner import StepPlanner


def documented_policy():
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
    names: dict = {}
    exec(compile(code, "docs/architecture.md", "exec"), names)
    return code, names["PeriodicRounds"]


def test_the_policy_has_at_most_thirty_lines_and_runs_in_simulated_training():
    code, policy = documented_policy()
    assert len(code.splitlines()) <= 30

    def train(batcher):
        settings = dict(hold="samples", samples=64, prompts=8, signal="tokens", num_engines=2)
        sampler = DynamicSampler(tolerance=None)
        planner = StepPlanner(StragglerAwareGroupController([8]), sampler, batcher, None, **settings)
        costs = CostModel.load(ROOT / "eval/engines/h100-7b.json")
        return SimulatedTraining(planner, LogNormal(100, 1.0, 0.5, 4000), costs, gpus=2, prompt_tokens=9)

    run = train(policy(period=4))
    steps = [run.step() for _ in range(8)]
    assert [step["long_round"] for step in steps] == [0, 0, 0, 1] * 2
    assert {step["dispatched"] for step in steps[:3]} == {10} and len(run.queue) < 8
    restored = policy(period=4)
    restored.load_state_dict(json.loads(json.dumps(run.planner.batcher.state_dict())))
    assert restored.state_dict() == run.planner.batcher.state_dict()

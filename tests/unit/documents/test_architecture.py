"""The policy that docs/architecture.md adds works in the scheduler's parts, as it says."""

import inspect
import json
import re

import pytest
from cpu_stack import ROOT
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import train
from simulate import parse_arguments

from openrlhf_sagc import policies
from openrlhf_sagc.decisions.planner import Batcher
from openrlhf_sagc.decisions.records import Outlook

METHODS = ("decide", "observe", "metrics", "state_dict", "load_state_dict")


@pytest.fixture(scope="module")
def code():
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
    return block


@pytest.fixture(scope="module")
def policy(code):
    names: dict = {}
    exec(compile(code, "docs/architecture.md", "exec"), names)
    return names["PeriodicRounds"]


def test_the_policy_has_at_most_thirty_lines_and_the_methods_of_a_batcher(code, policy):
    assert len(code.splitlines()) <= 30
    assert set(METHODS) == {name for name in vars(Batcher) if not name.startswith("_")}
    for name in METHODS:
        made, wanted = (inspect.signature(getattr(cls, name)).parameters for cls in (policy, Batcher))
        assert [(p.name, p.kind) for p in made.values()] == [(p.name, p.kind) for p in wanted.values()]


def test_simulated_training_takes_what_build_batcher_returns(policy, monkeypatch):
    monkeypatch.setattr(policies, "build_batcher", lambda args, num_engines: policy(args.rollout.batch_size // 2))
    flags = ["--lengths", "lognormal:median=100,between=1,within=0.5,cap=4000", "--batch_size", "8"]
    monkeypatch.setattr("sys.argv", ["simulate.py", *flags])
    costs = CostModel.load(ROOT / "eval/engines/h100-7b.json")
    run = train(parse_policy("fixed:8"), 2, LogNormal(100, 1.0, 0.5, 4000), costs, parse_arguments())
    steps = [run.step() for _ in range(8)]
    assert [step["long_round"] for step in steps] == [0, 0, 0, 1] * 2
    assert {step["dispatched"] for step in steps[:3]} == {10} and len(run.queue) < 8
    restored = policy(period=4)
    restored.load_state_dict(json.loads(json.dumps(run.planner.batcher.state_dict())))
    assert restored.state_dict() == run.planner.batcher.state_dict()


def test_the_policy_logs_the_round_that_it_decided(policy):
    batcher = policy(period=3)
    for drained in (False, True, False, False):
        decided = batcher.decide(4, 8, Outlook(waiting=1, drained=drained))
        batcher.observe(waiting=0, step=None)
        assert batcher.metrics()["long_round"] == decided.long
    assert decided.long is False

"""The policies that docs/architecture.md shows work as it says: in the scheduler's parts, in the simulator, in a run."""

import inspect
import json
import re

import pytest
import simulate
from cpu_stack import ROOT
from fake_engines import prompts_of
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import train
from simulate import parse_arguments

from openrlhf_sagc import policies
from openrlhf_sagc.decisions.planner import Batcher
from openrlhf_sagc.decisions.records import Outlook

METHODS = ("decide", "observe", "metrics", "state_dict", "load_state_dict")


def shown():
    """Class -> the code of the page that has it."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
    return {re.findall(r"^class (\w+)", block, re.M)[0]: block for block in blocks}


@pytest.fixture(scope="module")
def code():
    return shown()["PeriodicRounds"]


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


@pytest.fixture
def own(tmp_path):
    """own(name) -> FILE.py:Class of a class of the page."""

    def write(name):
        (tmp_path / "mine.py").write_text(shown()[name])
        return f"{tmp_path / 'mine.py'}:{name}"

    return write


def test_policies_of_ones_own_have_twenty_lines():
    assert shown().keys() == {"PeriodicRounds", "ShortTail", "Learnable"}
    assert all(len(shown()[name].splitlines()) <= 20 for name in ("ShortTail", "Learnable"))


def test_group_sizes_of_ones_own_in_the_simulator(own, monkeypatch, tmp_path):
    word, out = own("ShortTail"), tmp_path / "out.json"
    sizes = {}
    for within in (0.0, 3.0):  # in groups: no tail, and a long one
        lengths = f"lognormal:median=100,between=1,within={within},cap=4000"
        flags = ["--lengths", lengths, "--steps", "3", "--batch_size", "8", "--json", str(out)]
        policies = f"fixed:8,{word},{word}+tail:sort@prompts"
        monkeypatch.setattr("sys.argv", ["simulate.py", *flags, "--policies", policies])
        simulate.main()
        rows = json.loads(out.read_text())["rows"]
        names = ["fixed:8@samples", "mine.py:ShortTail@samples", "mine.py:ShortTail+tail:sort@prompts"]
        assert [row["policy"] for row in rows] == names
        sizes[within] = [row["group_size"] for row in rows]
        assert rows[1]["straggler_rate"] >= (within > 0) / 4
    assert sizes == {0.0: [8, (8 + 16 + 32) / 3, (8 + 16 + 32) / 3], 3.0: [8, (8 + 4 + 4) / 3, (8 + 4 + 4) / 3]}


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("/none.py:ShortTail", "--policies /none.py:ShortTail cannot be imported: there is no file /none.py"),
        ("OWN5", "ShortTail gives group_size 5: use an int, one of [4, 8, 16, 32]"),
    ],
)
def test_the_simulator_refuses_in_a_line_what_does_not_fit(own, monkeypatch, tmp_path, word, line):
    if word == "OWN5":  # in the second step
        word = own("ShortTail")
        (tmp_path / "mine.py").write_text(
            shown()["ShortTail"].replace("self.group_size = self.group_sizes[", "self.group_size = 5  # [")
        )
    flags = ["--lengths", "lognormal:median=100,between=1,within=0.5,cap=4000", "--steps", "2", "--batch_size", "8"]
    monkeypatch.setattr("sys.argv", ["simulate.py", *flags, "--policies", word])
    with pytest.raises(SystemExit) as refused:
        simulate.main()
    text = str(refused.value)
    assert text.startswith(f"eval/simulate.py: --policies {word} ") and line in text and "\n" not in text


def test_group_sizes_of_ones_own_in_training(own, make_generator):
    flags = {"policy": own("ShortTail"), "group_sizes": [2, 4, 8], "objective": "throughput"}
    short = lambda prompt, size: [(10, float(place % 2)) for place in range(size)]  # noqa: E731
    generator = make_generator(
        400, lambda *group: short(*group) if len(generator.drawn) < 6 else tailed(*group), **flags
    )

    def tailed(prompt, size):
        return [(10, 0.0)] * (size - 1) + [(90, 1.0)]

    sizes = []
    for _ in range(5):
        generator.generate_samples()
        sizes.append(generator.metrics["sagc/group_size"])
    assert sizes == [4, 8, 8, 4, 2] and 0.0 < generator.metrics["sagc/fill"] < 1
    resumed = make_generator(400, tailed, **flags)
    resumed.load_state_dict(json.loads(json.dumps(generator.state_dict())))
    resumed.generate_samples()
    assert resumed.metrics["sagc/group_size"] == generator.metrics["sagc/next_group_size"]


def test_a_filter_of_ones_own_in_training(own, make_generator):
    """Prompts of odd numbers have a signal; those above 6 are mostly solved, which the third time shows."""

    def respond(prompt, size):
        return [(10, float(place > 0 or not prompt % 2)) for place in range(size)]

    flags = {"algo__dynamic_filtering_policy": own("Learnable"), "group_sizes": [4]}
    generator = make_generator(40, respond, True, **flags)
    answer = generator.ray.response

    def cut(ref, *words):
        return answer(ref, *words) | {"truncated": ref.prompt == "3"}

    generator.ray.response = cut
    samples, *_ = generator.generate_samples()
    assert prompts_of(samples) == [1, 5, 7, 9]
    logged = generator.metrics
    assert logged["dynamic_filtering/dropped_constant"] >= 4 and logged["dynamic_filtering/dropped_cut_off"] == 1
    assert "dynamic_filtering/dropped_mostly_solved" not in logged
    filter = generator.planner.sampler.filter._own
    filter.solved = dict.fromkeys(filter.solved, 0.9) | {str(prompt): 1.1 for prompt in range(40)}
    resumed = make_generator(40, respond, True, algo__dynamic_filtering_at_cap="keep", **flags)
    resumed.load_state_dict(json.loads(json.dumps(generator.state_dict(), default=lambda value: value.tolist())))
    assert resumed.planner.sampler.filter._own.solved == filter.solved

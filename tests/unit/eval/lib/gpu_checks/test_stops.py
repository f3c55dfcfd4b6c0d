"""What check 9 says of an engine; this one is made up, and tests/stack stops a real one."""

import pytest
from lib.gpu_checks import stops
from lib.gpu_checks.outcomes import FAIL, PASS

from openrlhf_sagc.decisions.records import Rollout


class Engine:
    """Stops at once; `faults` make it wrong."""

    def __init__(self, **faults):
        self.faults, self.running, self.over, self.answers = faults, {}, [], 0

    def greedy(self, prompts):
        self.answers += 1
        return [[self.faults.get("drift", 0) * self.answers, len(prompt)] for prompt in prompts]

    def begin(self, numbers, prompts):
        self.running |= dict.fromkeys(numbers, stops.GROUP)

    def call(self, function, *inputs):
        if function is stops.reset_cache:
            return self.faults.get("reset", True)
        wanted = self.running if not inputs or self.faults.get("all") else inputs[0]
        for number in list(wanted):
            rollout = Rollout(self.faults.get("tokens", 9), 1.0, 0.0, False, self.faults.get("stopped", True), None)
            self.over += [(number, rollout)] * self.running.pop(number)

    def ended(self, count):
        found, self.over = self.over[:count], self.over[count:]
        return iter(found)

    def unfinished(self):
        return self.faults.get("left", 0)


def outcome(**faults):
    return stops.stopped_often(Engine(**faults), ["one", "three"], 4 * stops.GROUP, 4)


def test_an_engine_that_leaves_nothing_passes():
    found = outcome()
    assert found.status == PASS and found.reason == f"{4 * 4 * stops.GROUP} rollouts in 4 stops"


@pytest.mark.parametrize(
    "faults, said",
    [
        ({"left": 3}, "requests are left"),
        ({"reset": False}, "cannot be reset"),
        ({"drift": 1}, "greedy responses"),
        ({"stopped": False}, "were not stopped while they ran"),
        ({"tokens": 0}, "were not stopped while they ran"),
        ({"all": True}, "groups have ended that were not stopped"),
    ],
)
def test_what_is_wrong_with_an_engine_is_said(faults, said):
    found = outcome(**faults)
    assert found.status == FAIL and said in f"{found.unit} {found.reason}"

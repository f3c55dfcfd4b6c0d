"""Under dynamic batches the optimizer steps of a rollout have samples of all lengths, at no cost in time."""

import json

import pytest
from cpu_stack import ROOT

RECIPES = {  # samples, ranks, optimizer steps, longest response, tokens of a micro-batch
    "1.5B": (2048, 8, 16, 8192, 20480),
    "7B": (8192, 8, 16, 20480, 22528),
    "32B on 64 ranks": (8192, 64, 16, 8192, 10240),
}


@pytest.mark.parametrize("name", RECIPES)
def test_optimizer_steps_have_as_many_tokens_and_truncated_responses(run_in_tree, name):
    unpatched, patched = (
        json.loads(
            run_in_tree(tree, ROOT / "tests/helpers/step_lengths.py", *map(str, RECIPES[name])).splitlines()[-1]
        )
        for tree in ("cpu-base", "cpu-patched")
    )
    assert unpatched["ratio"] > 4 and max(unpatched["truncated"]) > 0.35 and min(unpatched["truncated"]) == 0
    assert patched["ratio"] < 1.01
    samples, ranks, steps, *_ = RECIPES[name]
    assert max(patched["truncated"]) - min(patched["truncated"]) <= ranks * steps / samples  # a sample of each rank
    for share in ("busy", "busy_attention"):
        assert patched[share] > 0.98 and patched[share] > unpatched[share] - 0.005

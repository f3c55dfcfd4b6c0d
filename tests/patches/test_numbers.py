"""The numbers that a patch changes, and those that no patch may change."""

import pytest
from cpu_stack import ROOT


@pytest.fixture
def run_script(run_in_tree):
    """run_script(tree, script): the last line that the script prints with the OpenRLHF of build/TREE."""
    return lambda tree, script: run_in_tree(tree, "-c", script).splitlines()[-1]


@pytest.mark.parametrize("tree, worst", [("cpu-base", 10.0), ("cpu-patched", 0.0)])
def test_patch_zeroes_the_advantages_of_constant_groups(run_script, tree, worst):
    """Rewards of 0.9 have no signal; unpatched OpenRLHF gives each -59.6, which the clip range cuts to -10."""
    script = (
        "import sys; sys.path.insert(0, 'tests/helpers')\n"
        "import torch; from experiences import experience_maker, experiences_of\n"
        "from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker\n"
        "maker = experience_maker(RemoteExperienceMaker)\n"
        "experiences = experiences_of(torch.full((32,), 0.9), list(range(32)), 32)\n"
        "advantages = maker.compute_advantages_and_returns(experiences)[0].advantages\n"
        "print(advantages.abs().max().item())"
    )
    assert float(run_script(tree, script)) == pytest.approx(worst, abs=0.05)


@pytest.mark.parametrize("tree, orders", [("cpu-base", 2), ("cpu-patched", 1)])
def test_patch_makes_the_order_of_prompts_follow_the_seed(run_script, tree, orders):
    """Unpatched OpenRLHF shuffles the prompts anew in every process, whatever the seed."""
    script = (
        "from openrlhf.utils.deepspeed import DeepspeedStrategy\n"
        "strategy = DeepspeedStrategy.__new__(DeepspeedStrategy); strategy.seed = 42\n"
        "print(list(strategy.setup_dataloader(list(range(48)), 1, shuffle=True, collate_fn=lambda rows: rows[0])))"
    )
    assert len({run_script(tree, script) for _ in range(2)}) == orders


def test_recorded_rollouts_give_the_same_bits_with_and_without_the_patches(run_in_tree):
    outputs = []
    for tree in ("cpu-base", "cpu-patched"):
        output = run_in_tree(tree, ROOT / "tests/data/shape_rollouts.py", ROOT / "tests/data/rollouts.json")
        outputs.append(dict(line.split() for line in output.splitlines() if len(line.split()) == 2))
    assert len(set(outputs[0].values())) >= 5  # the estimators do differ
    assert outputs[0] == outputs[1]

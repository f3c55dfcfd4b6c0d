"""Training's flags in the simulator."""

import argparse
from types import SimpleNamespace

import pytest
from lib.policies import parse_policy
from lib.simulation.flags import add_package_flags, default_arguments, package_flags, training_arguments

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.policies import build_planner


def planner_of(word, *flags):
    """The planner of a policy, with steps of 8 x 8 samples."""
    parser = argparse.ArgumentParser()
    add_package_flags(parser)
    parser.set_defaults(batch_size=8, n_samples_per_prompt=8, dynamic_sampling=False)
    return build_planner(training_arguments(parse_policy(word), parser.parse_args(flags)), num_engines=2)


def test_names_and_defaults_are_trainings():
    training = argparse.ArgumentParser()
    add_arguments(training)
    defaults = vars(training.parse_args([]))
    flags = package_flags()
    assert {"group_sizes", "signal", "prompt_ratio", "response_ratio", "max_gen_batches"} <= flags.keys()
    assert all(name in action.dest and action.default == defaults[action.dest] for name, action in flags.items())
    switches = {name for name in defaults if name.startswith(("rollout.sagc.", "rollout.tail_batching."))}
    switches -= {action.dest for action in flags.values()}
    names = {
        "rollout.sagc.enable",
        "rollout.sagc.policy",
        "rollout.tail_batching.enable",
        "rollout.tail_batching.method",
    }
    assert switches == names


@pytest.mark.parametrize(
    "word, sizes, first, groups",
    [
        ("sagc", [4, 8, 16, 32], 8, 8),
        ("fixed:16", [16], 16, 4),
        ("fixed:16@prompts", [16], 16, 8),
        ("fixed:4+tail:2+lengths", [4], 4, 16),
    ],
)
def test_a_policys_name_sets_sizes_rounds_and_what_a_step_keeps(word, sizes, first, groups):
    planner = planner_of(word, "--prompt_ratio", "1.5", "--tradeoff", "3")
    assert (list(planner.controller.group_sizes), planner.controller.group_size) == (sizes, first)
    assert planner.controller.tradeoff == 3 and planner.sampler.tolerance is None
    assert (planner.predictor is not None) == ("lengths" in word)
    step = planner.begin(PromptQueue(SimpleNamespace(size=100)))
    assert (step.group_size, step.num_groups) == (first, groups)
    assert (step.round.prompt_ratio, step.round.rollouts) == ((1.5, 2 * first) if "tail" in word else (1.0, first))


def test_default_arguments_are_trainings_but_for_those_given():
    arguments = vars(default_arguments(tradeoff=5.0, seed=3))
    others = {name: action.default for name, action in package_flags().items() if name != "tradeoff"}
    assert arguments == others | {"tradeoff": 5.0, "seed": 3}

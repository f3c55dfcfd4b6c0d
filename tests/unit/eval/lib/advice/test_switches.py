"""The switches: what is replayed is what their flags are."""

import argparse
from argparse import Namespace

import pytest
from lib.advice.switches import WITHOUT_TAIL, known_sizes, switches_of
from lib.policies import parse_policy
from lib.simulation.flags import add_package_flags, training_arguments
from lib.simulation.lengths import Trace
from made_traces import write_trace

from openrlhf_sagc.arguments import add_arguments


@pytest.fixture
def arguments():
    parser = argparse.ArgumentParser()
    add_package_flags(parser)
    own = {"n_samples_per_prompt": 8, "batch_size": 16, "dynamic_sampling": False, "tail_batching": False}
    return Namespace(**vars(parser.parse_args([])) | own)


def parsed(flags, n=8, batch_size=16):
    """Flags as a training run of this size and number of prompts reads them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser)
    parser.add_argument("--rollout.n_samples_per_prompt", type=int, default=n)
    parser.add_argument("--rollout.batch_size", type=int, default=batch_size)
    parser.add_argument("--algo.dynamic_filtering_enable", action="store_true")
    return vars(parser.parse_args(flags.split()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_straggler_rate": 0.3, "hold": "prompts", "prompt_ratio": 1.5},
        {"n_samples_per_prompt": 4, "batch_size": 32},
    ],
)
def test_the_flags_of_a_switch_make_the_run_that_is_replayed(arguments, changes):
    vars(arguments).update(changes, group_sizes=[4, 8, 16])
    for switch in switches_of(arguments, [4, 8, 16], can_filter=True):
        flags = parsed(switch.flags, arguments.n_samples_per_prompt, arguments.batch_size)
        arguments.dynamic_sampling = switch.dynamic_sampling
        replayed = training_arguments(parse_policy(switch.policy), arguments)
        assert flags["rollout.n_samples_per_prompt"] == replayed.rollout.n_samples_per_prompt, switch
        assert flags["rollout.batch_size"] == replayed.rollout.batch_size, switch
        assert flags["algo.dynamic_filtering_enable"] == replayed.algo.dynamic_filtering_enable, switch
        assert flags["rollout.length_aware_dispatch"] == replayed.rollout.length_aware_dispatch, switch
        if flags["rollout.sagc.enable"]:
            assert flags["rollout.sagc.group_sizes"] == replayed.rollout.sagc.group_sizes, switch
        assert flags["rollout.tail_batching.enable"] == replayed.rollout.tail_batching.enable, switch
        if flags["rollout.tail_batching.enable"]:
            assert flags["rollout.tail_batching.response_ratio"] == replayed.rollout.tail_batching.response_ratio == 1
            assert flags["rollout.tail_batching.method"] == replayed.rollout.tail_batching.method == "auto"
            assert flags["rollout.tail_batching.prompt_ratio"] == replayed.rollout.tail_batching.prompt_ratio
        if len(replayed.rollout.sagc.group_sizes) > 1:
            for name in ("max_straggler_rate", "hold", "tradeoff"):
                assert flags[f"rollout.sagc.{name}"] == getattr(replayed.rollout.sagc, name), switch


def test_the_run_as_it_is_comes_first_and_every_switch_once(arguments):
    switches = switches_of(arguments, [4, 8], can_filter=True)
    assert switches[0][:3] == ("as it is", "fixed:8", "")
    names = [switch.name for switch in switches]
    assert len(set(names)) == len(names) == 9 and [x for x in switches if x.dynamic_sampling] == switches[-2:]
    assert "dynamic sampling" not in [switch.name for switch in switches_of(arguments, [4, 8], can_filter=False)]
    arguments.dynamic_sampling = True  # the run has it already
    filtered = switches_of(arguments, [8], can_filter=True)
    assert [switch.name for switch in filtered] == ["as it is", "tail batching", "placed rollouts"]
    assert all(switch.dynamic_sampling for switch in filtered)


def test_a_run_that_has_tail_batching_keeps_or_drops_it(arguments):
    arguments.tail_batching = True
    switches = switches_of(arguments, [4, 8], can_filter=True)
    assert switches[0] == ("as it is", "fixed:8+tail", "", False)
    kept = ["groups of 4", "group control", "placed rollouts", "dynamic sampling"]
    dropped = ["no tail batching", "groups of 4 without tail batching", "group control without tail batching"]
    assert sorted(switch.name for switch in switches[1:]) == sorted(kept + dropped)
    for switch in switches:
        assert ("+tail" not in switch.policy) == (WITHOUT_TAIL in switch.flags) == (switch.name in dropped)
        parsed(switch.flags.removesuffix(WITHOUT_TAIL))
        parse_policy(switch.policy)


def test_sizes_are_known_of_which_most_prompts_have_a_group(tmp_path):
    path = write_trace(tmp_path / "t.csv", prompts=10, samples=8)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(("p0,7", "p1,7"))))
    trace = Trace(path)
    assert known_sizes(trace, [16, 8, 4, 1], 128) == [4, 8]  # 8 of 10 have eight
    assert known_sizes(trace, [4, 5, 8], 128) == [4, 8] and known_sizes(trace, [4, 5], None) == [4, 5]
    path.write_text("\n".join(line for line in lines if not line.startswith(("p0,7", "p1,7", "p2,7"))))
    assert known_sizes(Trace(path), [4, 8], 128) == [4]

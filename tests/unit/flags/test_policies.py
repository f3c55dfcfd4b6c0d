"""The policies that flags make."""

import argparse

import pytest
from openrlhf.utils.config import hierarchize

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.decisions.best_rounds import BestRounds
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.records import Outlook
from openrlhf_sagc.decisions.sorted_steps import SortedSteps
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher
from openrlhf_sagc.decisions.token_weights import Trained
from openrlhf_sagc.policies import build_batcher, build_controller, build_planner, build_sampler

TAIL = "--rollout.tail_batching.enable"


def args_of(*words):
    """The arguments as train_ppo_ray nests them: 16 prompts a step, groups of 8 first."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--rollout.batch_size", type=int, default=16)
    parser.add_argument("--rollout.n_samples_per_prompt", type=int, default=8)
    parser.add_argument("--train.batch_size", type=int, default=128)
    parser.add_argument("--train.seed", type=int, default=42)
    parser.add_argument("--algo.dynamic_filtering_enable", action="store_true")
    parser.add_argument("--actor.loss_agg_mode", default="token-mean")
    parser.add_argument("--actor.policy_loss_type", default="ppo")
    parser.add_argument("--algo.dynamic_filtering_range", type=float, nargs=2, default=(0, 1))
    return hierarchize(parser.parse_args(words))


def test_defaults_are_the_documented_ones():
    controller = build_controller(args_of("--rollout.sagc.enable"))
    assert (list(controller.group_sizes), controller.group_size) == ([4, 8, 16, 32], 8)
    assert (controller.straggler_ratio, controller.max_straggler_rate) == (2.5, 0.2)
    assert isinstance(build_batcher(args_of(), 1), NoTailBatching)


def test_every_flag_reaches_its_policy():
    words = "--rollout.sagc.group_sizes 2 8 --rollout.sagc.straggler_ratio 3 --rollout.sagc.max_straggler_rate 0.4"
    controller = build_controller(args_of(*words.split()))
    assert (list(controller.group_sizes), controller.straggler_ratio, controller.max_straggler_rate) == (
        [2, 8],
        3,
        0.4,
    )
    words = f"{TAIL} --rollout.tail_batching.method stop --rollout.tail_batching.prompt_ratio 1.5 --rollout.tail_batching.response_ratio 2"
    batcher = build_batcher(args_of(*words.split()), 1)
    assert isinstance(batcher, TailBatcher)
    round = batcher.decide(4, 8, Outlook())
    assert (round.prompt_ratio, round.rollouts) == (1.5, 16)
    planner = build_planner(args_of("--rollout.length_aware_dispatch", "--rollout.sagc.signal", "seconds"), 3)
    assert isinstance(planner.predictor, LengthPredictor)


@pytest.mark.parametrize(
    "words, weighed",
    [
        ("", False),
        (TAIL, True),
        (f"{TAIL} --rollout.tail_batching.token_weight round", False),
        (f"{TAIL} --rollout.tail_batching.method sort", True),
        (f"{TAIL} --rollout.tail_batching.method stop --rollout.tail_batching.prompt_ratio 1", False),  # plain steps
        (f"{TAIL} --actor.loss_agg_mode seq-mean-token-mean", None),
        (f"{TAIL} --actor.policy_loss_type gspo", None),
    ],
)
def test_rounds_of_tail_batching_are_weighed_where_the_loss_is_a_mean_over_tokens(words, weighed):
    planner = build_planner(args_of(*words.split()), 1)
    if weighed is None:
        assert planner.token_weights is None and planner.weigh(None, [Trained(1, 1)]) is None
    else:
        plain = planner.token_weights.weigh([Trained(20, 2)], False)
        assert plain == ((10, 1) if weighed else None)


@pytest.mark.parametrize(
    "method, kind, ratio",
    [
        ((), BestRounds, 1.0),
        (("sort",), SortedSteps, 1.0),
        (("stop",), TailBatcher, 1.25),
        (("sort", 1.02), SortedSteps, 1.02),
    ],
)
def test_a_method_of_tail_batching_makes_its_rounds(method, kind, ratio):
    flags = [f"--rollout.tail_batching.{name}" for name in ("method", "prompt_ratio")]
    planner = build_planner(args_of(TAIL, *(str(word) for pair in zip(flags, method) for word in pair)), 1)
    batcher = planner.batcher
    assert type(batcher) is kind and (kind is not BestRounds) <= (getattr(batcher, "prompt_ratio", 0) == ratio)
    assert (planner.predictor is None) == (kind is TailBatcher)


@pytest.mark.parametrize("switch, reason", [((), None), (("--algo.dynamic_filtering_enable",), "all_right")])
def test_the_filter_drops_only_where_it_is_switched_on(switch, reason):
    assert build_sampler(args_of(*switch)).judge([1.0] * 4).reason == reason


def test_a_first_size_that_is_no_group_size_is_named():
    with pytest.raises(ValueError, match="group_sizes 4 16 do not hold --rollout.n_samples_per_prompt 8"):
        build_controller(args_of("--rollout.sagc.group_sizes", "4", "16"))


def test_the_objective_throughput_has_a_model_of_the_steps_seconds():
    assert build_controller(args_of()).objective == "throughput"
    assert build_planner(args_of(), 3).step_model is not None
    for others in (["--rollout.sagc.objective", "size"], ["--rollout.sagc.group_sizes", "8"]):
        assert build_planner(args_of(*others), 3).step_model is None

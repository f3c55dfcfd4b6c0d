"""A step trained in random buckets is the step trained at once, on real DeepSpeed engines."""

import pytest
from tolerances import assert_same_training, near
from trained_weights import run_package_loop

pytestmark = pytest.mark.xdist_group("streamed training")  # one worker trains
STEP = {  # 8 groups of 4, in three steps of other token counts; clipping is active
    "train.batch_size": 32,
    "rollout.batch_size": 8,
    "actor.max_norm": 0.05,
    "train.old_log_probs": "auto",
    "train.micro_batches": "length",
    "actor.adam.lr": 1e-3,
}
KL = {"algo.kl.init_coef": 0.1, "algo.kl.use_loss": True, "algo.kl.estimator": "k3", "actor.entropy_coef": 0.01}
TWO_STEPS = {"train.batch_size": 16}
# 9, 9 and 6 groups of 4, whose samples are dealt out at random; ranks have shares of other sizes.
THREE_STEPS = {"rollout.batch_size": 9, "train.batch_size": 12, "train.micro_batch_size": 2}
CASES = {
    "ZeRO 1": {"ds.zero_stage": 1},
    "ZeRO 2": {},
    "ZeRO 3": {"ds.zero_stage": 3},
    "KL and entropy": KL,
    "Dr. GRPO": {"algo.advantage.estimator": "dr_grpo"},
    "two steps": TWO_STEPS,
    "two steps, ZeRO 3": {**TWO_STEPS, "ds.zero_stage": 3},
    "RLOO, shuffled": {"algo.advantage.estimator": "rloo", "train.micro_batches": "shuffled"},
}
STREAMS = ("off", "first")  # the latter draws another partition in each step


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    cases = {}
    for name, flags in CASES.items():
        for stream in STREAMS:
            cases[f"{name}, {stream}"] = {"flags": {**STEP, **flags, "train.stream": stream}, "prompts": 24}
    for stream in STREAMS:
        cases[f"three steps, {stream}"] = {"flags": {**STEP, **THREE_STEPS, "train.stream": stream}, "prompts": 24}
    cases["again"] = cases["ZeRO 2, first"]
    return run_package_loop(python, tmp_path_factory.mktemp("streamed"), {1: cases, 2: cases})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_weights_moments_and_log_are_those_of_the_step_at_once(trained, case, ranks):
    streamed, at_once = trained[ranks][f"{case}, first"], trained[ranks][f"{case}, off"]
    assert_same_training(streamed, at_once, steps=6 if "two steps" in case else 3, rate=1e-3)
    assert min(step["streamed"] for step in streamed["steps"]) > 0
    for ours, theirs in zip(streamed["steps"], at_once["steps"]):
        assert theirs["actor_grad_norm"] > 0.05
        ours = {name: value for name, value in ours.items() if name not in ("streamed", "actor_optimizer_seconds")}
        theirs = {name: value for name, value in theirs.items() if name != "actor_optimizer_seconds"}
        if "shuffled" in case:  # OpenRLHF logs a mean of micro-batches there
            del ours["policy_loss"], theirs["policy_loss"]
        assert ours == near(theirs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_sample_of_a_rollout_is_in_one_of_its_optimizer_steps(trained, ranks):
    """The order is random, so that weights differ; what is logged of the samples does not, and their number is right."""
    runs = [trained[ranks][f"three steps, {stream}"] for stream in STREAMS]
    for run in runs:
        assert run["actor"]["optimizer_steps"] == 3 + 3 + 2
        for step in run["steps"]:
            assert step["reward"] == near(step["rollout/reward_mean"])
            assert step["response_length"] == near(step["rollout/response_length_mean"])
    furthest = 2 * (3 + 3 + 2) * 1.2 * 1e-3  # Adam moves a weight by 1.2 times the rate in a step at most
    assert runs[0]["actor"]["weights"] == pytest.approx(runs[1]["actor"]["weights"], abs=furthest)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_scale_is_gone_after_the_step(trained, ranks):
    assert {run["actor"]["loss_scale"] for run in trained[ranks].values()} == {1.0}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_same_buckets_give_the_same_bits(trained, ranks):
    assert trained[ranks]["again"]["actor"] == trained[ranks]["ZeRO 2, first"]["actor"]


def test_buckets_have_more_micro_batches_where_that_spares_padding(trained):
    def more(case):
        at_once, streamed = (trained[1][f"{case}, {stream}"]["actor"]["micro_batches"] for stream in STREAMS)
        return streamed - at_once

    assert more("ZeRO 2") > 0 == more("RLOO, shuffled")

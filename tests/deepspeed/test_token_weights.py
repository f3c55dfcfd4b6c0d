"""Rounds that are weighed by the mean length of plain steps move the weights as one step of all their samples, on real DeepSpeed engines."""

import random

import pytest
import torch
from tolerances import FLOAT32, STEP, rounding
from trained_weights import run_package_loop

pytestmark = pytest.mark.xdist_group("token weights")  # one worker trains
PROMPTS, SIZE = 24, 4
LENGTHS = [random.Random(f"{prompt} {number}").randint(3, 20) for prompt in range(PROMPTS) for number in range(SIZE)]
ROUNDS = (
    {  # six rounds of 4 groups, whose mean lengths differ; with a learning rate of 0 all begin with the same weights
        "rollout.batch_size": 4,
        "train.batch_size": 16,
        "train.old_log_probs": "auto",
        "train.micro_batches": "length",
        "train.stream": "off",
        "train.plain_length": sum(LENGTHS) / len(LENGTHS),
        "actor.adam.lr": 0.0,
        "algo.kl.init_coef": 0.1,
        "algo.kl.use_loss": True,
        "algo.kl.estimator": "k3",
        "actor.entropy_coef": 0.01,
    }
)
TWO_STEPS = {"train.batch_size": 8}
DYNAMIC = {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 64, "train.old_log_probs": "forward"}
CASES = {
    "padded, ZeRO 1": ({"ds.zero_stage": 1}, 1),
    "padded, ZeRO 2": ({}, 1),
    "padded, ZeRO 3": ({"ds.zero_stage": 3}, 1),
    "two optimizer steps": (TWO_STEPS, 2),
    "streamed": ({"train.stream": "first"}, 1),
    "streamed, two optimizer steps": ({"train.stream": "first", **TWO_STEPS}, 2),
    "dynamic batches": (DYNAMIC, 1),
    "dynamic batches, two optimizer steps, ZeRO 3": ({**DYNAMIC, **TWO_STEPS, "ds.zero_stage": 3}, 2),
}
AT_ONCE = {"rollout.batch_size": PROMPTS, "train.batch_size": PROMPTS * SIZE, "train.plain_length": None}
PLAIN = {"train.plain_length": None}
RATE, BOUND, EPSILON = 1e-3, 1e-3, 1e-12  # gradients are far above this epsilon, though their norm is clipped
ONE_ROUND = {"train.plain_length": sum(LENGTHS[:16]) / 16 / 2, "actor.max_norm": BOUND}  # counts as two plain steps
LEARNS = {"actor.adam.lr": RATE, "actor.adam.eps": EPSILON, "actor.lr_scheduler": "constant"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    cases = {name: {"flags": ROUNDS | flags, "prompts": PROMPTS} for name, (flags, _) in CASES.items()}
    for stage in (1, 2, 3):
        cases[f"at once, {stage}"] = {"flags": ROUNDS | AT_ONCE | {"ds.zero_stage": stage}, "prompts": PROMPTS}
        one = ROUNDS | ONE_ROUND | {"ds.zero_stage": stage}
        cases[f"one round, {stage}"] = {"flags": one, "prompts": 4}
        cases[f"one round learns, {stage}"] = {"flags": one | LEARNS, "prompts": 4}
        cases[f"one plain step learns, {stage}"] = {"flags": one | LEARNS | PLAIN, "prompts": 4}
    cases["as rounds"] = {"flags": ROUNDS | PLAIN, "prompts": PROMPTS}
    return run_package_loop(python, tmp_path_factory.mktemp("weights"), {1: cases, 2: cases})


def mean_update(run):
    return torch.tensor(run["actor"]["update"], dtype=torch.float64) / len(run["actor"]["counts"])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_update_is_that_of_all_samples_at_once(trained, case, ranks):
    run, at_once = trained[ranks][case], trained[ranks][f"at once, {CASES[case][0].get('ds.zero_stage', 2)}"]
    counts = run["actor"]["counts"]
    assert len(counts) == 6 * CASES[case][1] and max(counts) > 1.05 and min(counts) < 0.95
    expected = mean_update(at_once)
    allowed = rounding(PROMPTS * SIZE * 24) * expected.abs().max().item()  # a sum over the tokens of all samples
    torch.testing.assert_close(mean_update(run), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_a_mean_length_every_step_counts_as_one_and_the_update_is_another(trained, ranks):
    run, expected = trained[ranks]["as rounds"], mean_update(trained[ranks]["at once, 2"])
    assert set(run["actor"]["counts"]) == {1.0}
    assert (mean_update(run) - expected).abs().max() > 1e-2 * expected.abs().max()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_engine_takes_the_rate_and_the_decays(trained, stage, ranks):
    """Adam's first step moves a weight by the rate, whatever its gradient; here by what decays and corrections make of two."""
    start, plain, two = (
        torch.tensor(trained[ranks][f"{case}, {stage}"]["actor"]["weights"], dtype=torch.float64)
        for case in ("one round", "one plain step learns", "one round learns")
    )
    (count,) = trained[ranks][f"one round learns, {stage}"]["actor"]["counts"]
    assert count == pytest.approx(2)
    expected = 2 * (1 - 0.9**2) / (1 - 0.9) * ((1 - 0.95) / (1 - 0.95**2)) ** 0.5
    moved = (plain - start).abs() > 0.9 * RATE  # others have no gradient
    assert moved.double().mean() > 0.5
    ratios = ((two - start) / (plain - start))[moved]
    off = FLOAT32 / RATE  # weights are up to about 1, and rounded
    assert ratios.median().item() == pytest.approx(expected, rel=off)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_engine_takes_the_bound_of_the_norm(trained, stage):
    run = trained[1][f"one round, {stage}"]
    norm = torch.tensor(run["actor"]["update"], dtype=torch.float64).norm().item() / 2
    off = STEP + 1e-6 / run["steps"][0]["actor_grad_norm"]  # DeepSpeed divides by the norm and 1e-6
    assert norm == pytest.approx(BOUND * 2 ** (-1 / 3), rel=off)

"""The shape of the GPU recipes trains what a padded step trains: packed samples, dynamic batches, checkpointing, sleep."""

import pytest
from tolerances import assert_same_training, near
from trained_weights import run_package_loop

pytestmark = pytest.mark.xdist_group("packed steps")  # one worker trains
SAVED = {"train.old_log_probs": "auto", "train.micro_batches": "length", "train.stream": "off"}
KEPT = {"train.old_log_probs": "forward", "train.micro_batches": "shuffled", "train.stream": "off"}
DYNAMIC = {"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 96}  # some five samples
PACKED = {
    **DYNAMIC,
    "ds.packing_samples": True,
    "ds.attn_implementation": "sdpa",
    "actor.gradient_checkpointing_enable": True,
}
ZERO_3 = {"ds.zero_stage": 3}  # whose ranks have other shares of the moments
SHAPES = {
    "ZeRO 1": {"ds.zero_stage": 1, **SAVED},
    "ZeRO 2": {"ds.zero_stage": 2, **SAVED},
    "ZeRO 3": {**ZERO_3, **SAVED},
    "ZeRO 3, nothing left out": {**ZERO_3, **KEPT},
    "ZeRO 3 that sleeps": {**ZERO_3, **SAVED, "ds.enable_sleep": True},
}
STEPS = {"one step": {}, "two steps": {"train.batch_size": 8}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    """(ranks, case) -> what the first rank has after three rollouts of 16 samples.

    "padded" is OpenRLHF's own step. Where a rollout has two optimizer steps, it shares samples out to them as dynamic
    batches are.
    """
    cases = {}
    for steps, size in STEPS.items():
        for name, stage in {"padded": {}, "padded, ZeRO 3": ZERO_3}.items():
            cases[f"{steps}, {name}"] = {
                "flags": {**size, **stage, **KEPT, **(DYNAMIC | {"train.padded": True} if size else {})}
            }
        cases |= {f"{steps}, {shape}": {"flags": {**PACKED, **size, **flags}} for shape, flags in SHAPES.items()}
    return run_package_loop(python, tmp_path_factory.mktemp("packed"), {1: cases, 2: cases})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", STEPS)
def test_weights_and_moments_are_those_of_a_padded_step(trained, steps, shape, ranks):
    stage = ", ZeRO 3" if "ZeRO 3" in shape else ""
    packed, padded = trained[ranks][f"{steps}, {shape}"], trained[ranks][f"{steps}, padded{stage}"]
    assert_same_training(packed, padded, steps=3 if steps == "one step" else 6, rate=1e-2)
    norms = [[step["actor_grad_norm"] for step in run["steps"]] for run in (packed, padded)]
    assert norms[0] == near(norms[1]) and min(norms[1]) > 0.05


@pytest.mark.parametrize("ranks", [1, 2])
def test_only_a_single_optimizer_step_leaves_the_forward_pass_out(trained, ranks):
    ratios = {case: [step["ppo_kl"] for step in run["steps"]] for case, run in trained[ranks].items()}
    assert ratios["one step, ZeRO 3"] == [0, 0, 0]
    assert any(ratios["one step, ZeRO 3, nothing left out"]) and any(ratios["two steps, ZeRO 3"])

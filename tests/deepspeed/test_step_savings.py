"""A step that leaves out a forward pass and padding trains what the whole step trains."""

import pytest
import torch
from tolerances import MUON, STEP, allowed_errors, assert_same_training, near
from trained_weights import run_package_loop

pytestmark = pytest.mark.xdist_group("step savings")  # one worker trains
KL = {"algo.kl.init_coef": 0.1}
SAVED = {"train.old_log_probs": "auto", "train.micro_batches": "length", "train.stream": "off"}
KEPT = {"train.old_log_probs": "forward", "train.micro_batches": "shuffled", "train.stream": "off"}
CLIPPED = {"actor.max_norm": 0.05}  # of gradients of 0.4
TWO_STEPS = {"train.batch_size": 8, "train.micro_batch_size": 2, "algo.kl.init_coef": 0.1, "algo.kl.use_loss": True}
CASES = {
    "ZeRO 2": {},
    "ZeRO 1": {"ds.zero_stage": 1},
    "ZeRO 3": {"ds.zero_stage": 3},
    "clipped": CLIPPED,
    "loss of sequences, entropy": {"actor.loss_agg_mode": "seq-mean-token-mean", "actor.entropy_coef": 0.01},
    "KL loss": {**KL, "algo.kl.use_loss": True, "algo.kl.estimator": "k3"},
    "KL in the reward": KL,
    "GSPO": {"actor.policy_loss_type": "gspo"},
    "LoRA": {"ds.lora.rank": 4, "ds.lora.alpha": 8},
    "Muon": {"actor.optim": "muon", "actor.muon.lr": 1e-2, "actor.max_norm": 0},
    "EMA": {"train.enable_ema": True, "train.ema_beta": 0.5},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    """(ranks, case) -> what the first rank has after three steps of 16 samples, with the savings and without."""
    folder = tmp_path_factory.mktemp("trained")
    cases = {}
    for name, flags in CASES.items():
        cases[name] = {"flags": {**flags, **SAVED}}
        cases[name + ", kept"] = {"flags": {**flags, **KEPT}}
    one = {"one micro-batch": {"flags": {**KEPT, "train.micro_batch_size": 16}}}
    two = {
        name: {"flags": {**flags, **TWO_STEPS}}
        for name, flags in {"two steps": SAVED, "two steps, kept": KEPT}.items()
    }
    return run_package_loop(python, folder, {1: cases | one | two, 2: cases | two})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_a_step_that_leaves_nothing_out(trained, case, ranks):
    saved, kept = trained[ranks][case], trained[ranks][case + ", kept"]
    muon = case == "Muon"
    assert_same_training(saved, kept, steps=3, rate=1e-2, muon=muon)
    norms = [[step["actor_grad_norm"] for step in run["steps"]] for run in (saved, kept)]
    assert norms[0] == near(norms[1], STEP * MUON if muon else STEP) and min(norms[1]) > CLIPPED["actor.max_norm"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_so_is_their_moving_average(trained, ranks):
    saved, kept = trained[ranks]["EMA"], trained[ranks]["EMA, kept"]
    allowed = allowed_errors(kept["actor"], steps=3, rate=1e-2)["weights"]  # it is a mean of weights
    average, expected, weights = map(torch.tensor, (saved["ema"], kept["ema"], saved["actor"]["weights"]))
    assert ((average - expected).abs() <= allowed).all()
    assert (average - weights).abs().max() > 0.1 * 1e-2  # they have moved on by about the rate


@pytest.mark.parametrize("ranks", [1, 2])
def test_so_they_are_in_a_rollout_of_two_optimizer_steps(trained, ranks):
    saved, kept = trained[ranks]["two steps"], trained[ranks]["two steps, kept"]
    assert_same_training(saved, kept, steps=6, rate=1e-2)
    for name in ("ppo_kl", "actor_grad_norm"):
        ours, theirs = ([step[name] for step in run["steps"]] for run in (saved, kept))
        assert ours == near(theirs) and any(theirs)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_logged_loss_is_that_of_all_tokens(trained, ranks):
    """OpenRLHF's log has that loss too where an optimizer step is one micro-batch."""
    runs = trained[ranks]["ZeRO 2"]["steps"], trained[1]["one micro-batch"]["steps"]
    losses, expected = ([step["policy_loss"] for step in run] for run in runs)
    assert losses == near(expected)
    assert [step["ppo_kl"] for step in runs[0]] == [0, 0, 0]

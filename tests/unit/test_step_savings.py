"""What a training step leaves out: when, as the start of the run says it, and with the same weights in the end."""

import json
import os
import subprocess

import pytest
import torch
from cpu_stack import ROOT
from flags import arguments_with

from openrlhf_sagc.step_savings import describe_savings, why_forward, why_shuffled

FLAGS = {
    "train.old_log_probs": "auto",
    "train.micro_batches": "length",
    "train.max_epochs": 1,
    "train.batch_size": 32,
    "train.dynamic_batch_enable": False,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 8,
    "algo.kl.init_coef": 0.0,
    "algo.kl.use_loss": False,
    "algo.kl.unbiased_gradient": False,
    "ds.packing_samples": False,
    "actor.aux_loss_coef": 0.0,
}
KL = {"algo.kl.init_coef": 0.1}


@pytest.mark.parametrize(
    "flags, forward, shuffled",
    [
        ({}, "", ""),
        ({"train.old_log_probs": "forward"}, "--train.old_log_probs forward asks for it", ""),
        ({"train.micro_batches": "shuffled"}, "", "--train.micro_batches shuffled asks for it"),
        ({"train.max_epochs": 2}, "--train.max_epochs 2 trains on a rollout again", ""),
        ({"train.batch_size": 8}, "--train.batch_size 8 makes 4 optimizer steps of a rollout", ""),
        (KL, "the KL in the reward needs it", ""),
        ({**KL, "algo.kl.use_loss": True}, "", ""),
        (
            {**KL, "algo.kl.use_loss": True, "algo.kl.unbiased_gradient": True},
            "--algo.kl.unbiased_gradient needs it",
            "",
        ),
        ({"ds.packing_samples": True}, "", "--ds.packing_samples leaves no padding"),
        ({"train.dynamic_batch_enable": True}, "", "--train.dynamic_batch_enable makes micro-batches by their tokens"),
        ({"actor.aux_loss_coef": 0.01}, "", "--actor.aux_loss_coef 0.01 is a loss of each micro-batch"),
    ],
)
def test_what_is_kept_has_a_reason(flags, forward, shuffled):
    args = arguments_with(FLAGS | flags)
    assert (why_forward(args), why_shuffled(args)) == (forward, shuffled)
    described = describe_savings(args)
    assert f"({forward})" in described if forward else "own forward pass gives the old log-prob" in described
    assert f"({shuffled})" in described if shuffled else "samples of like lengths" in described


SAVED = {"train.old_log_probs": "auto", "train.micro_batches": "length"}
KEPT = {"train.old_log_probs": "forward", "train.micro_batches": "shuffled"}
CLIPPED = {"actor.max_norm": 0.05}  # of gradients of 0.4
CASES = {
    "ZeRO 2": {},
    "ZeRO 1": {"ds.zero_stage": 1},
    "ZeRO 3": {"ds.zero_stage": 3},
    "clipped": CLIPPED,
    "loss of sequences, entropy": {"actor.loss_agg_mode": "seq-mean-token-mean", "actor.entropy_coef": 0.01},
    "KL loss": {**KL, "algo.kl.use_loss": True, "algo.kl.estimator": "k3"},
    "KL in the reward": KL,
    "GSPO": {"actor.policy_loss_type": "gspo"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    """(ranks, case) -> what the first rank has after three steps of 16 samples, with the savings and without."""
    folder = tmp_path_factory.mktemp("trained")
    cases = {}
    for name, flags in CASES.items():
        cases[name] = {"flags": {**flags, **SAVED}}
        cases[name + ", kept"] = {"flags": {**flags, **KEPT}}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/build/cpu-patched"}
    one = {"one micro-batch": {"flags": {**KEPT, "train.micro_batch_size": 16}}}
    request = json.dumps({"folder": str(folder), "1": cases | one, "2": cases})
    ended = subprocess.run(
        [python, ROOT / "tests/helpers/package_loop.py"],
        input=request,
        env=environment,
        capture_output=True,
        text=True,
    )
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    assert ended.returncode == 0, ended.stderr[-3000:] + logs
    return {ranks: json.loads((folder / f"results-{ranks}.json").read_text()) for ranks in (1, 2)}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_a_step_that_leaves_nothing_out(trained, case, ranks):
    saved, kept = trained[ranks][case], trained[ranks][case + ", kept"]
    assert saved["actor"]["optimizer_steps"] == kept["actor"]["optimizer_steps"] == 3
    for name in ("weights", "exp_avg", "exp_avg_sq"):
        ours, theirs = torch.tensor(saved["actor"][name]), torch.tensor(kept["actor"][name])
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6 * theirs.abs().max().item())
    norms = [[step["actor_grad_norm"] for step in run["steps"]] for run in (saved, kept)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and min(norms[1]) > CLIPPED["actor.max_norm"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_logged_loss_is_that_of_all_tokens(trained, ranks):
    """OpenRLHF's log has that loss too where an optimizer step is one micro-batch."""
    runs = trained[ranks]["ZeRO 2"]["steps"], trained[1]["one micro-batch"]["steps"]
    losses, expected = ([step["policy_loss"] for step in run] for run in runs)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert [step["ppo_kl"] for step in runs[0]] == [0, 0, 0]

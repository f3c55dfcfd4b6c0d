"""A run that goes on from a checkpoint trains what the uninterrupted one trains, its moving average and its KL coefficient too."""

import pytest
import torch
from trained_weights import run_package_loop

pytestmark = pytest.mark.xdist_group("resumed training")  # one worker trains
PLAIN = {"train.old_log_probs": "forward", "train.micro_batches": "shuffled", "train.stream": "off"}
PLAIN |= {"actor.lr_scheduler": "constant", "actor.lr_warmup_ratio": 0}
AVERAGE = {"train.enable_ema": True, "train.ema_beta": 0.5}
ADAPTIVE = {
    "algo.kl.init_coef": 0.1,
    "algo.kl.target": 1e-3,
    "algo.kl.horizon": 20,
}  # the coefficient grows by 16 % a step
CASES = {"ZeRO 2": AVERAGE | ADAPTIVE, "ZeRO 3": AVERAGE | ADAPTIVE | {"ds.zero_stage": 3}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    """(ranks, case) -> what the first rank has after three steps, in one run or in two."""
    cases = {}
    for name, flags in CASES.items():
        cases[name] = {"flags": {**PLAIN, **flags}}
        cases[name + ", resumed"] = {"flags": {**PLAIN, **flags}, "stop_at": 2}
    return run_package_loop(python, tmp_path_factory.mktemp("resumed"), {1: cases, 2: cases})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(trained, case, ranks):
    straight, resumed = trained[ranks][case], trained[ranks][case + ", resumed"]
    assert len(resumed["steps"]) == len(straight["steps"]) == 3
    for name in ("actor", "ema"):
        weights, expected = (
            torch.tensor(run[name]["weights"] if name == "actor" else run[name]) for run in (resumed, straight)
        )
        assert (weights - expected).abs().max() < 1e-6, name
    assert straight["ema"] != straight["actor"]["weights"]

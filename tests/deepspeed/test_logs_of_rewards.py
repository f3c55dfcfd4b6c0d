"""Logs that some samples have change neither the training nor its log, on one rank and on two."""

import pytest
from trained_weights import run_package_loop

from openrlhf_sagc.driver.extra_logs import is_own_name

pytestmark = pytest.mark.xdist_group("logs of rewards")  # one worker trains
CASES = {  # forward passes merge samples with and without a key; micro-batches of one reduce other keys on each rank
    "at once": {"train.micro_batch_size": 1, "train.stream": "off"},
    "streamed": {"train.micro_batch_size": 1, "train.stream": "first"},
}
STEP = {"train.old_log_probs": "auto", "train.micro_batches": "length"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, python):
    cases = {}
    for name, flags in CASES.items():
        for ragged in (False, True):
            flags = {**STEP, **flags, "train.ragged": ragged}
            cases[f"{name}, {ragged}"] = {"flags": flags, "prompts": 8}
    return run_package_loop(python, tmp_path_factory.mktemp("logs"), {1: cases, 2: cases})


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_weights_and_log_are_those_of_samples_without_logs(trained, case, ranks):
    ragged, plain = trained[ranks][f"{case}, True"], trained[ranks][f"{case}, False"]
    assert ragged["actor"]["weights"] == plain["actor"]["weights"]
    for ours, theirs in zip(ragged["steps"], plain["steps"], strict=True):
        del ours["actor_optimizer_seconds"], theirs["actor_optimizer_seconds"]
        assert ours == theirs


@pytest.mark.parametrize("case", CASES)
def test_no_log_of_a_reward_can_have_a_name_of_the_steps_log(trained, case):
    """OpenRLHF's names grow with its versions: those of this one are all known."""
    for step in trained[1][f"{case}, False"]["steps"]:
        assert {name for name in step if not is_own_name(name)} <= {"streamed"}  # that one is of the test's loop

"""Patches 9 and 10: a rollout whose samples the actors cannot share evenly."""

import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack


def test_a_short_batch_trains_as_on_one_actor(train, task, tmp_path):
    """7 prompts x 4 = 28 samples on two actors and two critics in micro-batches of 8.

    That unpatched ranks get unequal numbers of micro-batches, and so wait for each other, tests/patches/test_ranks.py shows.
    """
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join((task / "prompts.jsonl").read_text().splitlines()[:7]) + "\n")
    short = {
        "data__prompt_dataset": prompts,
        "reward__remote_url": None,
        "train__agent_func_path": AGENTS / "seeded_agent.py",
        "rollout__n_samples_per_prompt": 4,
        "rollout__micro_batch_size": 8,
        "train__batch_size": 32,
        "algo__advantage__estimator": "gae",
    }
    two = {"actor__num_gpus_per_node": 2, "critic__num_gpus_per_node": 2, "train__micro_batch_size": 8}
    ragged = train("cpu-patched", off=True, **short, **two).scalars
    one = {"actor__num_gpus_per_node": 1, "critic__num_gpus_per_node": 1, "train__micro_batch_size": 32}
    whole = train("cpu-patched", off=True, **short, **one).scalars
    assert ragged["rollout/num_samples"].tolist() == whole["rollout/num_samples"].tolist() == [28]
    # The gradient is that of the same samples in one micro-batch: none is lost or counted twice.
    for name in ("actor_grad_norm", "critic_loss"):
        assert ragged[name].tolist() == pytest.approx(whole[name].tolist(), rel=1e-3), name

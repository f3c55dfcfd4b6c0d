"""A reward that fails for good ends an asynchronous run with its name; a synchronous one goes on from its checkpoint."""

import re

import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack


def test_failed_reward_ends_the_run_and_its_checkpoint_is_good(train, task, tmp_path, monkeypatch):
    flags = {
        "reward__remote_url": AGENTS / "failing_reward.py",
        "reward__retries": 1,
        "rollout__batch_size": 16,
        "rollout__n_samples_per_prompt": 4,  # an eighth of the groups is constant: a step asks for more than it needs
        "train__num_episodes": 2,
        "algo__dynamic_filtering_enable": True,
        "algo__dynamic_filtering_surplus": "keep",
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
    }
    monkeypatch.setenv("FAIL_AFTER", "230")  # of 64 samples a step
    failed = train("cpu-patched", fails=True, train__async_enable=True, **flags)
    # Not the last step that was printed: an asynchronous run's last lines may be lost as it ends.
    saved = int((tmp_path / "checkpoints" / "_actor" / "latest").read_text().removeprefix("global_step"))
    assert 1 <= saved <= 4
    (error,) = set(re.findall(r"RuntimeError: (--reward.*)", failed.output))
    assert re.search(r"failing_reward.py: \d+ of \d+ samples lack a reward after at most 2 attempts, first: ", error)
    assert "ConnectionError: verifier is gone (failing_reward.py:14); --reward.max_failure_share 0.02" in error

    monkeypatch.setenv("FAIL_AFTER", "100000")
    evaluation = {"eval__dataset": task / "prompts.jsonl", "eval__steps": 1, "eval__n_samples_per_prompt": 1}
    resumed = train("cpu-patched", ckpt__load_enable=True, **flags, **evaluation).scalars
    assert resumed.index[0] == saved + 1
    assert (resumed["rollout/num_samples"] == 64).all()
    assert 5 <= resumed.index[-1] <= 7  # 96 prompts, sixteen and what is dropped a step
    for steps in (failed.scalars, resumed):  # groups and rollouts were kept over an update, here with an evaluation
        assert (steps["dynamic_filtering/kept"] + steps["dynamic_filtering/kept_running"]).max() > 0
        assert steps["dynamic_filtering_pass_rate"].astype(float).between(0, 100, inclusive="right").all()
    # The first has groups that the asynchronous run began with the weights of a step before, where it kept any.
    kept = failed.scalars["dynamic_filtering/kept"].get(saved, 0)
    assert resumed["rollout/age_max"].iloc[0] in ((1, 2) if kept else (0, 1, 2))
    assert resumed["rollout/age_max"].iloc[1:].max() == 1

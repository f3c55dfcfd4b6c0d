"""Features and modes together, a run for as many cells of docs/compatibility.md as are readable."""

from collections import Counter

import pytest
from real_runs import AGENTS

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]
PROMPTS, SAMPLES = 48, 64
AGENT = {"reward__remote_url": None, "train__agent_func_path": AGENTS / "scripted_agent.py"}
CONTROL = {"rollout__sagc__enable": True, "rollout__sagc__group_sizes": [4, 8, 16]}
PARTIAL = {"train__async_enable": True, "train__partial_rollout_enable": True}


def test_an_agents_groups_are_streamed_under_group_control_and_evaluated(train, task, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_LOG", str(tmp_path / "rollouts"))
    run = train(
        "cpu-patched",
        **AGENT,
        **CONTROL,
        train__stream="auto",
        train__batch_size=SAMPLES // 2,
        eval__dataset=task / "prompts.jsonl",
        eval__steps=2,
        eval__n_samples_per_prompt=2,
        ckpt__path=tmp_path / "checkpoints",
        ckpt__save_steps=2,
    )
    steps = run.scalars
    assert (steps["rollout/num_samples"] == SAMPLES).all() and set(steps["sagc/group_size"]) <= {4.0, 8.0, 16.0}
    assert steps["stream/sample_share"].max() > 0
    assert "eval_default_pass2" in run.output and list((tmp_path / "checkpoints" / "_actor").glob("best_global_step*"))


def test_an_asynchronous_run_has_group_control_by_seconds_muon_an_average_and_a_reference(train):
    steps = train(
        "cpu-patched",
        **CONTROL,
        rollout__sagc__signal="seconds",
        rollout__sagc__straggler_ratio=1.001,  # most responses are cut and end in the same decode step, somewhat apart
        train__async_enable=True,
        train__enable_ema=True,
        actor__optim="muon",
        actor__muon__lr=1e-3,
        actor__max_norm=0,
        algo__kl__init_coef=1e-3,
        algo__kl__use_loss=True,
        algo__kl__estimator="k3",
        ref__num_gpus_per_node=1,
    ).scalars
    assert (steps["rollout/num_samples"] == SAMPLES).all() and set(steps["sagc/group_size"]) <= {4.0, 8.0, 16.0}
    assert steps["sagc/straggler_rate"].max() > 0 and steps["kl"].iloc[-1] > 0


def test_adapters_are_trained_by_a_reward_model_and_reach_the_engine(train, task):
    """On the same sampled tokens the engine's log-probabilities are the actor's, which have left the reference's."""
    run = train(
        "cpu-patched",
        actor__model_name_or_path=task / "deep",
        reward__remote_url=None,
        reward__model_name_or_path=task / "deep",  # with a random value head
        reward__num_gpus_per_node=1,
        ds__lora__rank=16,
        ds__lora__alpha=64,
        actor__adam__lr=1e-2,
        algo__kl__init_coef=1e-8,
        ref__num_gpus_per_node=1,
    )
    steps = run.scalars
    assert steps["group_reward_std"].min() > 0
    assert steps["kl"].tail(3).min() > 0.01 and steps["vllm_kl"].abs().max() < 0.1 * steps["kl"].tail(3).min()
    assert (run.model / "adapter_model.safetensors").exists()


def test_a_killed_run_with_partial_rollouts_goes_on_with_its_groups(train, tmp_path, monkeypatch):
    log = tmp_path / "rollouts"
    monkeypatch.setenv("ROLLOUT_LOG", str(log))
    flags = {
        **AGENT,
        **CONTROL,
        **PARTIAL,
        "rollout__sagc__objective": "size",
        "rollout__sagc__signal": "seconds",
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
    }
    killed = train("cpu-patched", kill_at="Global step 3:", **flags).scalars
    resumed = train("cpu-patched", ckpt__load_enable=True, **flags).scalars
    saved = resumed.index[0] - 1
    last = killed.index[-1]  # the fourth may be over when the run is killed
    assert killed.index.tolist() == list(range(1, last + 1)) and last >= 3 and saved in (last - 1, last)
    assert resumed["sagc/group_size"].iloc[0] == killed["sagc/next_group_size"][saved]
    assert (resumed["rollout/num_samples"] == SAMPLES).all()
    finished = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert len(finished) == PROMPTS and min(finished.values()) >= 4


def test_without_the_scheduler_partial_rollouts_train_all_prompts(train):
    steps = train("cpu-patched", off=True, **PARTIAL).scalars
    assert len(steps) == PROMPTS / 8 and (steps["rollout/num_samples"] == SAMPLES).all()
    assert (steps["actor_grad_norm"] > 0).all()

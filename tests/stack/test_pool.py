"""Prompts that stay in flight over weight syncs: each is trained once, and none too late, though the run is killed between."""

from collections import Counter

import pandas as pd
import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack
PROMPTS, SIZE, EPISODES, MAX_AGE = 48, 4, 2, 2


def test_a_pool_trains_every_prompt_once_and_none_too_late(train, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_LOG", str(tmp_path / "rollouts"))
    flags = {
        "train__async_enable": True,
        "train__partial_rollout_enable": True,
        "rollout__vllm_generate_batch_size": 16,
        "rollout__max_age": MAX_AGE,
        "rollout__n_samples_per_prompt": SIZE,
        "train__batch_size": 8 * SIZE,
        "train__num_episodes": EPISODES,
        "reward__remote_url": None,
        "train__agent_func_path": AGENTS
        / "scripted_agent.py",  # a third of the groups has one that is six times as long
        "algo__advantage__is_correction_level": None,
        "rollout__trace": tmp_path / "run.csv",
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
    }
    killed = train("cpu-patched", kill_at="Global step 3:", **flags)
    assert "16 prompts stay in flight" in killed.output and "importance correction is on" in killed.output
    resumed = train("cpu-patched", ckpt__load_enable=True, **flags).scalars
    saved = resumed.index[0] - 1
    steps = pd.concat([killed.scalars.loc[:saved], resumed])
    assert steps.index.tolist() == list(range(1, PROMPTS * EPISODES // 8 + 1))
    assert (steps["rollout/num_samples"].astype(int) == 8 * SIZE).all()
    assert 0 < steps["rollout/age_max"].astype(float).max() <= MAX_AGE
    for waits in ("rollout/engines_wait_share", "rollout/actors_wait_share"):
        assert resumed[waits].between(0, 1).all()
    # What ran when the run was killed is rolled out again; all else is in the trace once an episode.
    rows = pd.read_csv(tmp_path / "run.csv")
    assert Counter(rows["prompt_id"]).total() >= PROMPTS * EPISODES * SIZE
    assert set(Counter(rows["prompt_id"]).values()) <= {SIZE * EPISODES, SIZE * (EPISODES + 1)}

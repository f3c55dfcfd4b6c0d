"""A run that goes on from a checkpoint takes the decisions and the prompts of the run that saved it."""

import shutil
from collections import Counter

import pandas as pd
import pytest
from real_runs import AGENTS

from openrlhf_sagc.run.notes import read_note

pytestmark = pytest.mark.stack
PROMPTS = 48
DECISIONS = ["sagc/group_size", "sagc/next_group_size", "sagc/straggler_rate", "sagc/virtual_queue", "sagc/hazard"]


def test_resumed_run_goes_on_as_the_uninterrupted_one(train, tmp_path, monkeypatch):
    """Asynchronous, from the checkpoint of the first episode's last step; test_failures.py resumes sync.

    Runs that are really killed are in test_tail_batching.py and test_cluster.py.
    """
    checkpoints = tmp_path / "checkpoints"
    flags = {
        "ckpt__path": checkpoints,
        "ckpt__save_steps": 1,
        "ckpt__max_num": 99,
        "reward__remote_url": None,
        "train__agent_func_path": AGENTS / "scripted_agent.py",
        "rollout__sagc__enable": True,
        "rollout__sagc__group_sizes": [4, 8, 16],
        "rollout__sagc__objective": "size",  # the other one follows the clock
        "rollout__sagc__max_straggler_rate": 0.3,
        "rollout__sagc__hold": "prompts",
        "train__num_episodes": 2,
        "train__async_enable": True,
        "algo__advantage__is_correction_level": None,
        "actor__lr_scheduler": "linear",
        "actor__lr_warmup_ratio": 0,
        "rollout__trace": tmp_path / "run.csv",
    }

    def run(name, **more):
        log = tmp_path / f"{name}.rollouts"
        monkeypatch.setenv("ROLLOUT_LOG", str(log))
        scalars = train("cpu-patched", **flags, **more).scalars
        return scalars, [line.split()[0] for line in log.read_text().splitlines()]

    def traced():
        rows = pd.read_csv(tmp_path / "run.csv")
        assert not rows.duplicated(["prompt_id", "sample_id"]).any()
        return Counter(rows[["step", "prompt_id", "tokens"]].itertuples(index=False, name=None))

    straight, all_rollouts = run("straight")
    straight_trace, all_rows = traced(), pd.read_csv(tmp_path / "run.csv")
    dispatched = straight["rollout/num_samples"].astype(int)
    prompts = (dispatched / straight["sagc/group_size"]).cumsum()
    saved = int((prompts >= PROMPTS).idxmax())
    assert 2 < saved < straight.index[-1] - 1 and straight["sagc/group_size"].nunique() > 1

    last_rows = all_rows[all_rows["step"] > saved]
    for later in range(saved + 1, straight.index[-1] + 1):
        shutil.rmtree(checkpoints / "_actor" / f"global_step{later}")
    (checkpoints / "_actor" / "latest").write_text(f"global_step{saved}")
    note = read_note(checkpoints / "_actor" / f"global_step{saved}")
    assert note["rows"] == PROMPTS and len(note["files"]) == 2  # of the model and of the optimizer
    resumed, last_rollouts = run("resumed", ckpt__load_enable=True)
    assert resumed.index.tolist() == list(range(saved + 1, straight.index[-1] + 1))
    for name in [*DECISIONS, "rollout/num_samples", "actor_lr"]:
        assert resumed[name].tolist() == pytest.approx(straight.loc[resumed.index, name].tolist(), rel=1e-5), name

    assert dispatched.sum() == len(all_rollouts)
    start = dispatched.loc[:saved].sum()
    for count in dispatched.loc[resumed.index]:  # within a step rollouts end in any order
        first, last_rollouts = last_rollouts[:count], last_rollouts[count:]
        assert Counter(first) == Counter(all_rollouts[start : start + count])
        start += count
    assert not last_rollouts
    assert traced() == straight_trace  # which had the rows of later steps already
    assert len(pd.read_csv(tmp_path / "run.before-resume-1.csv")) == len(last_rows)

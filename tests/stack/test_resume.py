"""A run killed with SIGKILL and resumed takes the decisions and the prompts of the uninterrupted one."""

from collections import Counter

import pytest

pytestmark = pytest.mark.stack
PROMPTS = 48
DECISIONS = ["sagc/group_size", "sagc/next_group_size", "sagc/straggler_rate", "sagc/virtual_queue", "sagc/hazard"]


def test_killed_and_resumed_run_goes_on_as_the_uninterrupted_one(train, tmp_path, monkeypatch):
    """Asynchronous, killed right after the checkpoint of the first episode's last step; test_failures.py resumes sync."""
    flags = {
        "reward__remote_url": None,
        "train__agent_func_path": str(__file__).replace("test_resume.py", "scripted_agent.py"),
        "rollout__sagc__enable": True,
        "rollout__sagc__group_sizes": [4, 8, 16],
        "rollout__sagc__max_straggler_rate": 0.3,
        "rollout__sagc__hold": "prompts",
        "train__num_episodes": 3,
        "train__async_enable": True,
        "algo__advantage__is_correction_level": None,
        "actor__lr_scheduler": "linear",
        "actor__lr_warmup_ratio": 0,
    }

    def run(name, **more):
        log = tmp_path / f"{name}.rollouts"
        monkeypatch.setenv("ROLLOUT_LOG", str(log))
        scalars = train("cpu-patched", **flags, **more).scalars
        return scalars, log.read_text().split()

    straight, all_rollouts = run("straight")
    dispatched = straight["rollout/num_samples"].astype(int)
    prompts = (dispatched / straight["sagc/group_size"]).cumsum()
    saved = int((prompts >= PROMPTS).idxmax())
    assert 2 < saved < straight.index[-1] - 1 and straight["sagc/group_size"].nunique() > 1

    checkpoints = {"ckpt__path": tmp_path / "checkpoints", "ckpt__save_steps": saved}
    killed, first_rollouts = run("killed", **checkpoints, kill_at=f"Global step {saved + 1}:")
    resumed, last_rollouts = run("resumed", **checkpoints, ckpt__load_enable=True)
    assert resumed.index.tolist() == list(range(saved + 1, straight.index[-1] + 1))
    for part in (killed.loc[:saved], resumed):
        for name in [*DECISIONS, "rollout/num_samples", "actor_lr"]:
            assert part[name].tolist() == pytest.approx(straight.loc[part.index, name].tolist(), rel=1e-5), name

    assert dispatched.sum() == len(all_rollouts)
    before = dispatched.loc[:saved].sum()
    joined = first_rollouts[:before] + last_rollouts
    start = 0
    for count in dispatched:  # within a step rollouts end in any order
        assert Counter(joined[start : start + count]) == Counter(all_rollouts[start : start + count])
        start += count
    assert start == len(joined)

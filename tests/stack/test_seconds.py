"""The straggler signal in seconds, with an agent of two turns whose tool sleeps at random."""

import statistics
from collections import defaultdict

import pytest
from real_runs import AGENTS

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]
SAMPLES, RATIO = 32, 2.0


def test_a_tool_that_sleeps_makes_stragglers_in_seconds(train, tmp_path, monkeypatch):
    """Every rollout sleeps 1 s, some 8.5 or 16: those are the stragglers, whatever their tokens."""
    log = tmp_path / "rollouts"
    monkeypatch.setenv("ROLLOUT_LOG", str(log))
    steps = train(
        "cpu-patched",
        reward__remote_url=None,
        train__agent_func_path=AGENTS / "sleepy_agent.py",
        data__max_samples=32,
        rollout__n_samples_per_prompt=SAMPLES // 8,
        rollout__sagc__enable=True,
        rollout__sagc__signal="seconds",
        rollout__sagc__straggler_ratio=RATIO,
        rollout__sagc__group_sizes=[4, 8],
        rollout__sagc__objective="size",
        train__batch_size=SAMPLES,
    ).scalars

    took = defaultdict(list)  # (step, prompt), one group: a step's rollouts end before the next step's begin
    for number, line in enumerate(log.read_text().splitlines()):
        prompt, seconds = line.split()
        took[number // SAMPLES, prompt].append(float(seconds))
    took = {group: seconds for group, seconds in took.items() if group[0] > 0}
    steps = steps.iloc[1:]  # the first step's seconds are the engine's warm-up
    groups = SAMPLES / steps["sagc/group_size"]
    assert len(took) == groups.sum()
    # By the agent's own clock, which counts waits for the engine and the load of the machine as well.
    events = sum(max(seconds) > RATIO * statistics.median(seconds) for seconds in took.values())
    assert events > 0
    assert (steps["sagc/straggler_rate"] * groups).sum() == pytest.approx(events, abs=2)
    assert steps["rollout/seconds_max"].max() > 8.5
    assert (steps["rollout/seconds_median"] >= 1).all()
    assert (steps["rollout/queue_seconds"] > 0).all()

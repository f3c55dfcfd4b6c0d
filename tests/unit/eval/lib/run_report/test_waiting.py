"""The lines on what rollouts wait for."""

import pytest
from lib.run_report.waiting import lines
from report_runs import arm_of, noisy, run_of

ON = {"flags": {"rollout.tail_batching.enable": True}}


@pytest.mark.parametrize(
    "columns, said",
    [
        ({}, []),  # not logged
        ({"rollout__queue_seconds": 0.3, "rollout__idle_tail_seconds": 0.7}, []),  # of 4 s of generation, 7.5 s a step
        ({"rollout__queue_seconds": 1.0}, ["a rollout waits 1.0 s for a slot of its engine, 25% of"]),
        (
            {"rollout__idle_tail_seconds": 1.5},
            ["engines wait 1.5 s for a step's last rollouts, 20% of it. --rollout.t"],
        ),
        ({"rollout__idle_tail_seconds": 1.5, "tail_batching__long_round": 0.0}, []),
        ({"rollout__idle_tail_seconds": 1.5, "kept": ON}, []),
        ({"rollout__idle_tail_seconds": 1.5, "kept": {"comparison": "fixed:8"}}, []),
        ({"rollout__queue_seconds": 2.0, "rollout__idle_tail_seconds": 2.0}, ["50% of", "27% of it"]),
    ],
)
def test_long_waits_are_named_with_their_flag(columns, said):
    found = lines([arm_of("ours", run_of(noisy(4.0, spread=0.0), **columns))])
    assert len(found) == len(said) and all(
        line.startswith("ours: ") and part in line for line, part in zip(found, said)
    )

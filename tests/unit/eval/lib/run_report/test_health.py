"""Lengths and learning health."""

import numpy as np
from lib.run_report.health import ends_of, section
from report_runs import arm_of, run_of


def test_first_and_last_steps_and_how_many_are_finite():
    kl = np.linspace(0, 1, 40)
    kl[3] = np.nan
    ours = arm_of("ours", run_of(np.full(40, 4.0), kl=kl, response_length=np.linspace(100, 200, 40)))
    assert ends_of(ours, "length", 0) == "112 → 188" and ends_of(ours, "kl", 2).endswith("(39 of 40 finite)")
    off = arm_of("off", run_of(np.full(40, 4.0)))
    lengths, metrics, missing = section([off, ours]).blocks[1:]
    assert lengths.rows[0][1] == "–" and lengths.rows[0][-1] == "not known"
    assert [row[0] for row in metrics.rows] == ["KL to the reference"] and "entropy" in missing


def test_the_share_of_long_prompts_in_the_update_is_of_who_logs_it():
    ours = arm_of("ours", run_of(np.full(4, 4.0), **{"token_weight/longest_tenth_update": 0.25}))
    off = arm_of("off", run_of(np.full(4, 4.0)))
    _, _, metrics, missing = section([off, ours]).blocks
    assert metrics.rows == [["longest tenth of prompts: share of the update", "–", "0.2500 → 0.2500"]]
    assert "tenth" not in missing

"""The line with which a run ends."""

import pytest

from openrlhf_sagc.config.refusal import refusal, refuse, words


def test_a_run_ends_with_its_line_without_secrets():
    refuse(False, "nothing")
    with pytest.raises(SystemExit, match="^openrlhf_sagc: --train.seed -1: use 0 or more$"):
        refuse([-1], "--train.seed -1: use 0 or more")
    assert "hunter2" not in str(refusal("--reward.remote_url http://me:hunter2@host/reward: no answer"))


def test_numbers_stand_as_on_a_command_line():
    assert words([4, 8, 0.5]) == "4 8 0.5"

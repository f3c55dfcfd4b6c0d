"""What flags come to, in a copy: what was given stays."""

import copy

from openrlhf_sagc.config.settled import settled, with_hidden_key


def test_without_group_control_the_group_size_is_the_scripts(arguments):
    flags = ["--rollout.n_samples_per_prompt", "16", "--rollout.sagc.group_sizes", "4", "8"]
    assert settled(arguments(*flags)).rollout.sagc.group_sizes == [16]
    assert settled(arguments(*flags, "--rollout.sagc.enable")).rollout.sagc.group_sizes == [4, 8]


def test_a_trace_has_its_whole_path(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settled(arguments("--rollout.trace", "new/run.csv")).rollout.trace == str(tmp_path / "new/run.csv")
    assert settled(arguments()).rollout.trace is None and not (tmp_path / "new").exists()


def test_what_was_given_stays(arguments):
    given = arguments(
        *("--logger.wandb.key", "secret", "--rollout.trace", "run.csv"),
        *("--reward.remote_url", "http://user:secret@host/get,http://other/get"),
    )
    before = copy.deepcopy(given)
    made = settled(given)
    assert given == before and "secret" in repr(given) and "secret" not in repr(made)
    assert made.reward.remote_url == given.reward.remote_url and made.logger.wandb.key == given.logger.wandb.key
    hidden = with_hidden_key(given)
    assert given == before and hidden == before and "key=secret" not in repr(hidden)

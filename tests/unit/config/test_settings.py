"""What flags come to, in a copy: what was given stays, and what was made as well."""

import copy
import pickle

import pytest

from openrlhf_sagc.config.settings import SIBLINGS, Settings, settled, with_hidden_key


def test_without_group_control_the_group_size_is_the_scripts(arguments):
    flags = ["--rollout.n_samples_per_prompt", "16", "--rollout.sagc.group_sizes", "4", "8"]
    assert settled(arguments(*flags)).rollout.sagc.group_sizes == [16]
    assert settled(arguments(*flags, "--rollout.sagc.enable")).rollout.sagc.group_sizes == [4, 8]


def test_a_trace_has_its_whole_path(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settled(arguments("--rollout.trace", "new/run.csv")).rollout.trace == str(tmp_path / "new/run.csv")
    assert settled(arguments()).rollout.trace is None and not (tmp_path / "new").exists()


def test_a_run_of_kept_steps_rolls_nothing_out(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settled(arguments("--train.rollouts_to", "kept")).train.rollouts_to == str(tmp_path / "kept")
    flags = ["--train.async_enable", "--train.partial_rollout_enable", "--rollout.trace", "run.csv"]
    flags += ["--ckpt.save_steps", "2"]
    made = settled(arguments(*flags, "--train.rollouts_from", "kept"))
    assert made.train.rollouts_from == str(tmp_path / "kept") and made.vllm.num_engines == 0
    assert made.ckpt.save_steps == -1
    assert not (made.train.async_enable or made.train.partial_rollout_enable or made.rollout.trace)


def test_drafts_are_an_argument_of_the_engines_beside_others(arguments):
    given = ["--vllm.engine_args", '{"max_num_seqs": 8}']
    assert settled(arguments(*given)).vllm.engine_args == {"max_num_seqs": 8}
    made = settled(arguments(*given, "--rollout.drafts", "siblings"))
    assert made.vllm.engine_args == {"max_num_seqs": 8, "speculative_config": SIBLINGS}
    assert made.openrlhf_args().vllm.engine_args["speculative_config"]["num_speculative_tokens"] == 8


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


def test_nobody_changes_settings(arguments):
    made = pickle.loads(pickle.dumps(settled(arguments())))  # as Ray sends them
    for change in (
        lambda: setattr(made.ckpt, "path", "x"),
        lambda: setattr(made, "ckpt", 1),
        lambda: delattr(made, "ckpt"),
    ):
        with pytest.raises(AttributeError, match="^(path|ckpt) of a run's settings stays as it is"):
            change()
    other = made.with_values({"ckpt.load_enable": True, "algo.advantage.gamma": 0.5})
    assert other.ckpt.load_enable and other.algo.advantage.gamma == 0.5 and type(other.algo.advantage) is Settings
    assert not made.ckpt.load_enable and made == Settings.of(made.openrlhf_args())
    theirs = made.openrlhf_args()
    theirs.algo.advantage.gamma = theirs.data.described = 2.0  # as OpenRLHF does
    assert made.algo.advantage.gamma == 1.0 and not hasattr(made.data, "described")

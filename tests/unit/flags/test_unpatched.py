"""`python -m openrlhf_sagc.unpatched`: OpenRLHF as released, whose flags are read before its imports."""

import json
import runpy
import sys

import pytest

from openrlhf_sagc.config.flags import openrlhf_parser, released_parser


@pytest.fixture
def started(monkeypatch, tmp_path):
    """started(*flags): the module that the command runs with them in tmp_path, and the words that it gets."""

    def run(*flags):
        found = []
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["unpatched", *flags])
            patch.setattr("ray.init", None)
            real = runpy.run_module
            patch.setattr(runpy, "run_module", lambda name, **_: found.append((name, sys.argv[1:])))
            real("openrlhf_sagc.unpatched", run_name="__main__")
        return found

    return run


@pytest.mark.parametrize("tree", ["base", "cpu-base"])
def test_its_parser_is_that_of_the_released_module(openrlhf_of, tree):
    openrlhf_of("cpu-patched")
    patched = [action.option_strings for action in openrlhf_parser()._actions]
    patched.remove(["--vllm.engine_args"])  # a patch's own flag
    openrlhf_of(tree)
    assert [action.option_strings for action in released_parser()._actions] == patched and len(patched) > 150


def test_released_openrlhf_runs_as_its_own_command(openrlhf_of, started):
    openrlhf_of("cpu-base")
    flags = ["--algo.advantage.estimator", "gae", "--train.batch_size=4", "--rollout.n_s", "1"]
    assert started(*flags) == [("openrlhf.cli.train_ppo_ray", flags)]


def test_it_keeps_its_start_in_the_default_folder(openrlhf_of, started, tmp_path):
    openrlhf_of("cpu-base")
    started("--train.batch_size=4", "--logger.wandb.key", "0123456789abcdef0123")
    (line,) = (tmp_path / "ckpt/run.jsonl").read_text().splitlines()
    start = json.loads(line)
    assert start["flags"]["train.batch_size"] == 4 and start["flags"]["rollout.batch_size"] > 0
    command = "python -m openrlhf_sagc.unpatched --train.batch_size=4 --logger.wandb.key 0123456789abcdef0123"
    assert start["command"] == command and start["flags"]["logger.wandb.key"] == "***"
    assert start["versions"]["openrlhf"].startswith("0.11.2 cpu-base ")
    assert (tmp_path / "ckpt/run.jsonl").stat().st_mode & 0o777 == 0o600  # its command is complete


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--rollout.sagc.enable"], "--rollout.sagc.enable is a flag of python -m openrlhf_sagc, not of"),
        (["--no_flag"], "--no_flag is not a flag of OpenRLHF"),
        (["--train.batch_size", "x"], "invalid int value: 'x': use a whole number"),
    ],
)
def test_what_it_does_not_take_is_one_line_before_it_starts(openrlhf_of, started, flags, said):
    openrlhf_of("cpu-base")
    with pytest.raises(SystemExit, match="^openrlhf_sagc: [^\n]+$") as ended:
        started(*flags)
    assert said in str(ended.value)

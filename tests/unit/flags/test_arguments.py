"""Flags and bad input, through the command itself: what fails must fail before Ray starts."""

import re
import sys

import pytest
from up_to_ray import SIZES, STOP, RayStarted


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--rollout.sagc.enable"],
        ["--rollout.sagc.enable", "--ref.num_gpus_per_node", "3"],
        ["--rollout.sagc.enable", "--ref.num_gpus_per_node", "100", "--algo.kl.init_coef", "0"],
        ["--rollout.sagc.enable", SIZES, "8"],
        ["--rollout.sagc.enable", SIZES, "4", "8", "16"],
        ["--rollout.sagc.enable", "--train.async_enable", "--train.partial_rollout_enable"],
        ["--rollout.sagc.enable", "--rollout.sagc.hold", "prompts", SIZES, "4", "8", "12"],
        # OpenRLHF's own eight GPUs for the policy and for the reference model
        [*"--rollout.sagc.enable --rollout.sagc.hold prompts --actor.num_gpus_per_node 8".split()]
        + [*"--ref.num_gpus_per_node 8 --rollout.micro_batch_size 8 --ds.zero_stage 3".split()],
        ["--rollout.sagc.enable", "--algo.advantage.estimator", "median"],
        ["--rollout.tail_batching.enable"],
        ["--rollout.tail_batching.enable", "--algo.dynamic_filtering_enable", "--algo.advantage.estimator", "median"],
        ["--rollout.sagc.enable", "--rollout.tail_batching.enable", "--rollout.length_aware_dispatch"],
        ["--rollout.tail_batching.prompt_ratio", "2"],  # off with its switch
        ["--rollout.tail_batching.response_ratio", "0"],
        ["--algo.dynamic_filtering_enable"],
        ["--rollout.sagc.enable", "--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_surplus", "keep"],
    ],
)
def test_good_flags_get_as_far_as_ray(run_trainer, flags):
    with pytest.raises(RayStarted):
        run_trainer(*flags)


@pytest.mark.parametrize(
    "flags, words",
    [
        ([], ["every step has 64 samples", "16 x 4, 8 x 8, 4 x 16, 2 x 32", "response tokens"]),
        (["--rollout.sagc.hold", "prompts"], ["every step has 8 prompts", "4 = 32, 8 = 64, 16 = 128, 32 = 256"]),
        (["--rollout.sagc.signal", "seconds"], ["2.5 times the group's median seconds"]),
        (
            [*STOP, "--rollout.tail_batching.response_ratio", "1.25"],
            ["dispatch 1.25 times the prompts and 1.25 times the rollouts per prompt", "response_ratio 1.25", "use 1"],
        ),
        (
            STOP,
            ["dispatch 1.25 times the prompts and 1 times the rollouts per prompt"],
        ),
        (
            ["--rollout.tail_batching.enable", "--rollout.tail_batching.prompt_ratio", "1.02"],
            ["once a history of lengths explains enough, each step has prompts whose earlier", "1.02 times as many"],
        ),
        (
            ["--rollout.tail_batching.enable", "--rollout.tail_batching.method", "sort"],
            ["; each step has prompts whose earlier responses were alike in length;"],
        ),
    ],
)
def test_start_says_once_what_was_chosen(run_trainer, capsys, flags, words):
    with pytest.raises(RayStarted):
        run_trainer("--rollout.sagc.enable", *flags)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("openrlhf_sagc: every step")]
    for word in ["the first group size is 8", "at most 20 % of the groups", "1 optimizer step", *words]:
        assert word in line


def test_tail_batching_alone_has_the_fixed_group_size(run_trainer, capsys):
    with pytest.raises(RayStarted):
        run_trainer("--rollout.tail_batching.enable", "--rollout.sagc.group_sizes", "4", "8")
    out = capsys.readouterr().out
    assert "every step has 64 samples" in out and "as prompts x group size 8 x 8; once a history" in out
    assert "straggler" not in out
    with pytest.raises(
        SystemExit, match="--rollout.n_samples_per_prompt 1 makes no group .*: use --rollout.n_samples_per_prompt 8"
    ):
        median = ["--algo.advantage.estimator", "median"]  # of the others OpenRLHF itself says so
        run_trainer("--rollout.tail_batching.enable", "--rollout.n_samples_per_prompt", "1", *median)


def test_the_command_runs_the_scheduler_at_the_scripts_group_size(run_trainer, capsys):
    """Group control is a flag of its own: without it its sizes choose nothing."""
    with pytest.raises(RayStarted) as started:
        run_trainer(SIZES, "7", "--rollout.length_aware_dispatch", "--algo.dynamic_filtering_max_gen_batches", "5")
    args = next(frame.frame.f_locals["args"] for frame in started.traceback if frame.name == "train")
    assert args.rollout.sagc.group_sizes == [8] and not args.rollout.sagc.enable
    assert "prompts x group size 8 x 8; at most 1 optimizer step" in capsys.readouterr().out


# Scripts that OpenRLHF runs and the scheduler cannot, as they are: what they say, and a part of their line.
AS_THEY_ARE = {
    "PPO with a critic, by default": (
        ["--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "1", "--rollout.batch_size", "64"],
        "use --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8 --rollout.batch_size 8, or start",
    ),
    "a number of prompts that groups do not divide": (
        [*"--algo.advantage.estimator gae --rollout.n_samples_per_prompt 1 --rollout.batch_size 20".split()]
        + [*"--train.batch_size 20 --train.micro_batch_size 4".split()],
        "use --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8, or start",
    ),
    "several samples for a critic": (
        ["--algo.advantage.estimator", "gae", "--critic.freezing_steps", "5"],
        "use --algo.advantage.estimator group_norm without --critic.freezing_steps 5, or start",
    ),
    "over-sampling for an estimator without groups": (
        [*"--algo.advantage.estimator reinforce --train.async_enable --rollout.vllm_generate_batch_size 16".split()],
        "use --algo.advantage.estimator group_norm without --rollout.vllm_generate_batch_size 16, or start",
    ),
    "REINFORCE of a sample each, with a flag of this package": (
        ["--algo.advantage.estimator", "reinforce", "--rollout.n_samples_per_prompt", "1", "--reward.retries", "3"]
        + ["--train.batch_size", "8"],
        "start python -m openrlhf_sagc.off without --reward.retries, which",
    ),
    "group control over one size": (
        ["--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "1", "--rollout.batch_size", "64"]
        + ["--rollout.sagc.enable", SIZES, "16"],
        "use --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 16 --rollout.batch_size 4, or start",
    ),
    "group control over sizes that a step of this size cannot have": (
        ["--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "1", "--rollout.batch_size", "16"]
        + ["--rollout.sagc.enable", "--train.batch_size", "16"],
        "--rollout.n_samples_per_prompt 8 --rollout.batch_size 2 --rollout.sagc.group_sizes 4 8 16, or start",
    ),
    "group control without the script's size": (
        ["--algo.advantage.estimator", "gae", "--rollout.n_samples_per_prompt", "6", "--rollout.sagc.enable"]
        + ["--train.batch_size", "48", "--train.micro_batch_size", "4"],
        "use --algo.advantage.estimator group_norm --rollout.sagc.group_sizes 4 6 8 16, or start",
    ),
    "over-sampling": (
        ["--train.async_enable", "--rollout.vllm_generate_batch_size", "16"],
        "--rollout.vllm_generate_batch_size 16 keeps prompts in flight while the weights change, which needs --train.async",
    ),
    "frozen at first": (["--critic.freezing_steps", "5"], "group_norm has no critic: drop it, or start"),
    "rollouts of a part of a training batch": (["--train.batch_size", "128"], "use --train.batch_size 64, or start"),
    "a dataset of less than a step": (
        ["--data.max_samples", "6"],
        "fewer than the 8 of a step: use more prompts or --rollout.batch_size 6 or less, or start",
    ),
}


def without(flags: list[str], dropped: str) -> list[str]:
    """The flags but for those of this text, which may have their values."""
    kept, names = [], [word for word in dropped.split() if word.startswith("--")]
    for word in flags:
        kept.append([word]) if word.startswith("--") else kept[-1].append(word)
    return [word for words in kept if words[0] not in names for word in words]


@pytest.mark.parametrize("flags, part", AS_THEY_ARE.values(), ids=AS_THEY_ARE.keys())
def test_what_openrlhf_runs_and_the_scheduler_cannot_says_how_to_run_it_both_ways(run_trainer, flags, part):
    with pytest.raises(SystemExit, match="^openrlhf_sagc: [^\n]+$") as ended:
        run_trainer(*flags)
    line = str(ended.value)
    assert part in line
    off = re.search(
        r"or start python -m openrlhf_sagc\.off(?: without (--.*?))?, which runs the (?:script|rest) as it is(?: \(|$)",
        line,
    )
    with pytest.raises(RayStarted):
        run_trainer(*without(flags, off[1] or ""), module="openrlhf_sagc.off")
    added = re.search(r": use (--[^(]*?)(?: without (--[^(]*?))?, or start", line)
    names = re.search(r"(--\S+ \d+)[^:]*: drop it", line)
    kept = without(flags, (added and added[2]) or (names and names[1]) or "--data.max_samples")
    with pytest.raises(RayStarted):
        run_trainer(*kept, *(added[1].split() if added else []))


def test_the_packages_estimator_is_of_no_use_without_the_scheduler(run_trainer):
    with pytest.raises(
        SystemExit,
        match="makes no group .*: use --rollout.n_samples_per_prompt 8 --rollout.batch_size 1 --train.batch_size 8$",
    ):
        run_trainer("--algo.advantage.estimator", "median", "--rollout.n_samples_per_prompt", "1")


def test_a_gamma_without_effect_is_said(run_trainer, capsys):
    with pytest.raises(RayStarted):
        run_trainer("--rollout.sagc.enable", "--algo.advantage.gamma", "0.9")
    assert "openrlhf_sagc: --algo.advantage.gamma 0.9 has no effect: group_norm uses 1" in capsys.readouterr().out


def test_flags_are_in_the_help(run_trainer, capsys):
    with pytest.raises(SystemExit):
        run_trainer("--help")
    text = capsys.readouterr().out
    for flag in "enable group_sizes straggler_ratio max_straggler_rate tradeoff discount hold signal".split():
        assert f"--rollout.sagc.{flag}" in text
    for flag in "enable prompt_ratio response_ratio".split():
        assert f"--rollout.tail_batching.{flag}" in text
    assert "--rollout.length_aware_dispatch" in text and "--rollout.agent_timeout" in text
    for flag in "tolerance max_gen_batches at_cap surplus".split():
        assert f"--algo.dynamic_filtering_{flag}" in text
    for flag in "timeout retries max_failure_share".split():
        assert f"--reward.{flag}" in text
    words = " ".join(text.split())
    assert "(default: length)" in words and "(default: gae)" in words  # of this package, and of OpenRLHF


def test_a_reward_file_is_imported_as_any_module(run_trainer, tmp_path, monkeypatch):
    """Also where Python writes its bytecode, which takes no path of another type than str."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "reward.py"
    file.write_text("def reward_func(queries, prompts, labels):\n    return 7\n")
    with pytest.raises(RayStarted) as started:
        run_trainer("--rollout.sagc.enable", "--reward.remote_url", str(file))
    args = next(frame.frame.f_locals["args"] for frame in started.traceback if frame.name == "train")
    assert SingleTurnAgentExecutor(args.reward.remote_url).reward_func([], [], []) == 7
    assert list(tmp_path.rglob("*.pyc"))


def test_the_arguments_are_printed_without_secrets(run_trainer):
    """OpenRLHF prints all arguments at the start of a run; the engines still get the whole URL, and wandb its key."""
    url = "http://user:secret@host/get?token=secret"
    with pytest.raises(RayStarted) as started:
        flags = ["--reward.remote_url", f"{url},http://other/get", "--logger.wandb.key", "secret"]
        run_trainer("--rollout.sagc.enable", *flags)
    args = next(frame.frame.f_locals["args"] for frame in started.traceback if frame.name == "train")
    assert args.reward.remote_url == [url, "http://other/get"] and args.logger.wandb.key == "secret"
    assert "http://other/get" in repr(args) and "secret" not in repr(args)

"""Flags and bad input, through the command itself: what fails must fail before Ray starts."""

import re
import sys

import pytest
from up_to_ray import RayStarted

SIZES = "--rollout.sagc.group_sizes"
STOP = ["--rollout.tail_batching.enable", "--rollout.tail_batching.method", "stop"]
CASES = {
    "size that does not divide the batch": (
        [SIZES, "8", "12"],
        f"{SIZES} 12 does not divide the 64 samples of a step",
        "sizes that do are 2 4 8 16",
    ),
    "no sizes": ([SIZES], f"{SIZES} must hold at least one size", "[]"),
    "limit outside (0, 1)": (
        ["--rollout.sagc.max_straggler_rate", "1.5"],
        "--rollout.sagc.max_straggler_rate must lie between 0 and 1",
        "1.5",
    ),
    "ratio of one": (["--rollout.sagc.straggler_ratio", "1"], "--rollout.sagc.straggler_ratio must be", "above 1"),
    "first size not a candidate": (
        [SIZES, "4", "16"],
        f"{SIZES} 4 16 do not hold --rollout.n_samples_per_prompt 8",
        f"add it, {SIZES} 4 8 16, or set it to one of them",
    ),
    "fewer prompts than a step needs": (
        ["--data.max_samples", "15"],
        "gives 15 prompts",
        "fewer than the 16 of a step at group size 4",
    ),
    "training batch that does not divide the step": (
        ["--train.batch_size", "48"],
        "--train.batch_size 48 does not divide the 64 samples of a step",
        "use 64 or a divisor of it",
    ),
    "micro-batches that do not divide the training batch": (
        ["--train.micro_batch_size", "24", "--actor.num_gpus_per_node", "2"],
        "--train.micro_batch_size 24 x 2 data-parallel actors does not divide --train.batch_size 64",
        "use a divisor of 32",
    ),
    "fewer samples than actors where groups of the step before are kept": (
        [
            "--algo.dynamic_filtering_enable",
            "--algo.dynamic_filtering_surplus",
            "keep",
            "--rollout.batch_size",
            "4",
            SIZES,
            "4",
            "8",
            "32",
            "--train.batch_size",
            "32",
            "--train.micro_batch_size",
            "1",
            "--actor.num_gpus_per_node",
            "8",
        ],
        f"--rollout.batch_size 4 and the smallest of {SIZES}, 4, can give only 4 samples to 8 data-parallel actors",
        "raise either until each actor has a sample",
    ),
    "fewer samples than actors": (
        [
            "--rollout.sagc.hold",
            "prompts",
            "--rollout.batch_size",
            "1",
            "--train.batch_size",
            "8",
            "--actor.num_gpus_per_node",
            "8",
        ],
        f"--rollout.batch_size 1 and the smallest of {SIZES}, 4, can give only 4 samples to 8 data-parallel actors",
        "raise either until each actor has a sample",
    ),
    "training batch that actors cannot share": (
        ["--actor.num_gpus_per_node", "3"],
        "3 data-parallel actors do not divide --train.batch_size 64",
        "use a multiple of 3",
    ),
    "fewer prompts than a step holds": (
        ["--rollout.sagc.hold", "prompts", "--data.max_samples", "7"],
        "gives 7 prompts",
        "fewer than the 8 of a step",
    ),
    "estimator without groups": (
        ["--algo.advantage.estimator", "reinforce"],
        "--algo.advantage.estimator reinforce has no groups for the scheduler",
        "use --algo.advantage.estimator group_norm, or start python -m openrlhf_sagc.off without --rollout.sagc.enable, which runs "
        "the rest as it is (dr_grpo, rloo, reinforce_baseline and median have groups, too)",
    ),
    "prompts that do not exist": (
        ["--data.prompt_dataset", "missing.jsonl"],
        "--data.prompt_dataset missing.jsonl cannot be loaded",
        "missing.jsonl",
    ),
    "tolerance below 0": (
        ["--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_tolerance", "-1"],
        "--algo.dynamic_filtering_tolerance must be a finite number of at least 0",
        "got -1",
    ),
    "cap below 1": (
        ["--algo.dynamic_filtering_max_gen_batches", "0"],
        "--algo.dynamic_filtering_max_gen_batches must be at least 1",
        "got 0",
    ),
    "surplus in engines that sleep": (
        ["--algo.dynamic_filtering_surplus", "keep", "--vllm.enable_sleep", "--train.colocate_all"],
        "--algo.dynamic_filtering_surplus keep does not work with --vllm.enable_sleep",
        "use --algo.dynamic_filtering_surplus discard",
    ),
    "seconds of rollouts that are paused": (
        ["--rollout.sagc.signal", "seconds", "--algo.dynamic_filtering_surplus", "keep"],
        "--algo.dynamic_filtering_surplus keep does not work with --rollout.sagc.signal seconds",
        "or --rollout.sagc.signal tokens",
    ),
    "no time for a reward": (
        ["--reward.timeout", "0"],
        "--reward.timeout must be a number of seconds above 0",
        "got 0",
    ),
    "no time for an agent": (
        ["--rollout.agent_timeout", "0", "--train.agent_func_path", "agent.py"],
        "--rollout.agent_timeout must be a number of seconds above 0",
        "got 0",
    ),
    "time for an agent that is not there": (
        ["--rollout.agent_timeout", "60"],
        "--rollout.agent_timeout 60 has no effect without --train.agent_func_path",
        "use --reward.timeout for a reward function or server",
    ),
    "address without a scheme": (
        ["--reward.remote_url", "user:secret@host:5000/get?secret"],
        "--reward.remote_url host:5000/get is neither a .py file nor an address",
        "use http://host:5000/get",
    ),
    "retries below 0": (["--reward.retries", "-1"], "--reward.retries must be at least 0", "got -1"),
    "share above 1": (
        ["--reward.max_failure_share", "10"],
        "--reward.max_failure_share must lie between 0 and 1",
        "got 10",
    ),
    "fewer prompts than needed": (
        [*STOP, "--rollout.tail_batching.prompt_ratio", "0.9"],
        "--rollout.tail_batching.prompt_ratio must be a finite number of at least 1",
        "got 0.9",
    ),
    "fewer rollouts than a group": (
        [*STOP, "--rollout.tail_batching.response_ratio", "nan"],
        "--rollout.tail_batching.response_ratio must be a finite number of at least 1",
        "got nan",
    ),
    "a surplus that sorted steps do not have": (
        ["--rollout.tail_batching.enable", "--rollout.tail_batching.prompt_ratio", "1.25"],
        "--rollout.tail_batching.prompt_ratio must be from 1 to 1.06 where steps are sorted, got 1.25",
        "use that, or --rollout.tail_batching.method stop",
    ),
    "rollouts that sorted steps do not stop": (
        ["--rollout.tail_batching.enable", "--rollout.tail_batching.response_ratio", "1.5"],
        "--rollout.tail_batching.response_ratio 1.5 is of --rollout.tail_batching.method stop",
        "add that, or drop it",
    ),
    "a history of lengths that nobody asks for": (
        [*STOP, "--rollout.length_history", "/none.csv"],
        "--rollout.length_history /none.csv has no effect",
        "or --rollout.length_aware_dispatch",
    ),
    "a history of lengths that is not there": (
        ["--rollout.tail_batching.enable", "--rollout.length_history", "/none.csv"],
        "--rollout.length_history /none.csv cannot be read as text",
        "No such file",
    ),
    "a folder without a history of lengths": (
        ["--rollout.tail_batching.enable", "--rollout.length_history", "/"],
        "--rollout.length_history / has no checkpoint",
        "or the --rollout.trace",
    ),
    "tail batching that keeps its tail": (
        ["--rollout.tail_batching.enable", "--algo.dynamic_filtering_surplus", "keep"],
        "--algo.dynamic_filtering_surplus keep does not work with --rollout.tail_batching.enable",
        "use --algo.dynamic_filtering_surplus discard",
    ),
    "tail batching under weights that change": (
        ["--rollout.tail_batching.enable", "--train.async_enable", "--train.partial_rollout_enable"],
        "--rollout.tail_batching.enable does not work with --train.partial_rollout_enable",
        "drop one",
    ),
    "a cap below the over-dispatch": (
        [*STOP, "--algo.dynamic_filtering_max_gen_batches", "1"],
        "--algo.dynamic_filtering_max_gen_batches 1 does not allow --rollout.tail_batching.prompt_ratio 1.25",
        "use 2 or more",
    ),
    "a reward's file that is not there": (
        ["--reward.remote_url", "/none.py"],
        "--reward.remote_url /none.py",
        "is not there",
    ),
    "a column that is not there": (
        ["--data.input_key", "question"],
        "--data.input_key question: no such column in --data.prompt_dataset",
        "(there are input): use --data.input_key input",
    ),
    "a model that is not there": (
        ["--actor.model_name_or_path", "/none"],
        "--actor.model_name_or_path /none is not there",
        "give the model's folder",
    ),
    "braces in a template": (
        ["--data.input_template", "{} \\boxed{}"],
        "--data.input_template '{} \\\\boxed{}' does not take the prompt in one place",
        "write {} once, where the prompt goes",
    ),
    "a step of 0": (["--ckpt.save_steps", "0"], "--ckpt.save_steps 0", "use 1 or more, or -1 for never"),
    "an assertion of OpenRLHF": (
        ["--algo.dynamic_filtering_enable", "--reward.remote_url", "", "--reward.model_name_or_path", "none"],
        "--algo.dynamic_filtering_enable needs rewards with the responses",
        "or drop it for the reward model",
    ),
    "adapters of weights that are spread": (
        ["--ds.lora.rank", "8", "--ds.zero_stage", "3"],
        "--ds.lora.rank 8 does not work with --ds.zero_stage 3",
        "use --ds.zero_stage 2",
    ),
    "adapters that an average lacks": (
        ["--ds.lora.rank", "8", "--train.enable_ema"],
        "--ds.lora.rank 8 does not work with --train.enable_ema",
        "drop it",
    ),
    "no engines": (
        ["--vllm.num_engines", "0"],
        "--vllm.num_engines 0 leaves nothing to generate with",
        "use 1 or more",
    ),
    "fewer batches than ranks of the reference model": (
        ["--rollout.sagc.hold", "prompts", "--ref.num_gpus_per_node", "8", "--rollout.micro_batch_size", "8"],
        "gives 8 data-parallel ranks, and a step at group size 4 can have as few as 4 batches of samples, fewer than one",
        "--ref.num_gpus_per_node 8 x --ref.num_nodes 1",
    ),
    "fewer batches than ranks of the reward model": (
        [
            *("--reward.num_gpus_per_node", "8", "--train.dynamic_batch_enable"),
            *("--reward.remote_url", "", "--reward.model_name_or_path", "none"),
        ],
        "--reward.num_gpus_per_node 8 x --reward.num_nodes 1 gives 8 data-parallel ranks, and a step at group size 4 can have",
        "use as many ranks as the actor has, 1, or a divisor",
    ),
    "ranks that ZeRO-3 would have wait for each other": (
        ["--ref.num_gpus_per_node", "3", "--ds.zero_stage", "3"],
        "can have as few as 64 batches of samples, which they cannot share evenly, so ZeRO-3 would wait for ever",
        "use as many ranks as the actor has, 1",
    ),
}


@pytest.mark.parametrize("flags, what, remedy", CASES.values(), ids=CASES.keys())
def test_bad_input_is_one_line_before_ray_starts(run_trainer, flags, what, remedy):
    with pytest.raises(SystemExit) as stop:
        run_trainer("--rollout.sagc.enable", *flags)
    message = stop.value.code
    assert message.startswith("openrlhf_sagc: ") and "\n" not in message
    assert what in message and remedy in message


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
        "does not work with --rollout.vllm_generate_batch_size 16, as it requests what a step needs",
    ),
    "frozen at first": (["--critic.freezing_steps", "5"], "group_norm has no critic: drop it, or start"),
    "rollouts of a part of a training batch": (["--train.batch_size", "128"], "use 64 or a divisor of it, or start"),
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
    names = re.search(r"(--\S+ \d+)[^:]*: (?:drop it|use 64)", line)
    kept = without(flags, (added and added[2]) or (names and names[1]) or "--data.max_samples")
    with pytest.raises(RayStarted):
        run_trainer(*kept, *(added[1].split() if added else []))


def test_the_packages_estimator_is_of_no_use_without_the_scheduler(run_trainer):
    with pytest.raises(
        SystemExit, match="makes no group .*: use --rollout.n_samples_per_prompt 8 --rollout.batch_size 1$"
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
    assert "http://host/get" in repr(args) and "secret" not in repr(args)

"""Flags that would end the run in a step."""

import pytest
from openrlhf.utils.config import hierarchize

from openrlhf_sagc.config.late_flags import DIVISORS, TABLE, check_late_flags

EVAL = ["--eval.dataset", "x.jsonl", "--eval.steps", "5"]
CORRECTION = "--algo.advantage.is_correction_"
REFUSED = [
    (["--ckpt.save_steps", "0"], "--ckpt.save_steps 0: use 1 or more, or -1 for never"),
    (["--ckpt.save_steps", "-5"], "--ckpt.save_steps -5: use 1 or more, or -1 for never"),
    (["--eval.steps", "0"], "--eval.steps 0: use 1 or more, or -1 for never"),  # OpenRLHF divides by it all the same
    (["--eval.dataset", "x.jsonl", "--eval.steps", "0"], "--eval.steps 0: use 1 or more, or -1 for never"),
    ([*EVAL, "--eval.n_samples_per_prompt", "0"], "--eval.n_samples_per_prompt 0: use 1 or more"),
    ([*EVAL, "--eval.temperature", "-1"], "--eval.temperature -1.0: use 0 or more"),
    (["--vllm.num_engines", "-1"], "--vllm.num_engines -1: use 1 or more"),
    (["--vllm.tensor_parallel_size", "0"], "--vllm.tensor_parallel_size 0: use 1 or more"),
    (["--vllm.gpu_memory_utilization", "90"], "--vllm.gpu_memory_utilization 90.0: use a share"),
    (["--train.batch_size", "0"], "--train.batch_size 0: use 1 or more"),
    (["--train.micro_batch_size", "-4"], "--train.micro_batch_size -4: use 1 or more"),
    (["--train.num_episodes", "0"], "--train.num_episodes 0: use 1 or more"),
    (["--train.max_epochs", "0"], "--train.max_epochs 0: use 1 or more"),
    (["--train.seed", "-1"], "--train.seed -1: use 0 or more"),
    (["--data.max_samples", "0"], "--data.max_samples 0: use 1 or more"),
    (["--logger.logging_steps", "0"], "--logger.logging_steps 0: use 1 or more"),
    (["--rollout.temperature", "0"], "--rollout.temperature 0.0: use a number above 0"),
    (["--rollout.temperature", "nan"], "--rollout.temperature nan: use a number above 0"),
    (["--rollout.top_p", "1.5"], "--rollout.top_p 1.5: use a number above 0 and at most 1"),
    (["--rollout.top_p", "0"], "--rollout.top_p 0.0: use a number above 0"),
    (["--rollout.max_new_tokens", "0"], "--rollout.max_new_tokens 0: use 1 or more"),
    (["--rollout.max_new_tokens", "2048"], "--rollout.max_new_tokens 2048 leaves none of --data.max_len 2048"),
    (["--reward.clip_range", "1", "-1"], "--reward.clip_range 1.0 -1.0: use the lower number first"),
    (
        ["--reward.stop_properly_penalty_coef", "2"],
        "--reward.stop_properly_penalty_coef 2.0: use a factor from 0 to 1",
    ),
    (
        ["--reward.overlong_buffer_len", "600", "--rollout.max_new_tokens", "512"],
        "--reward.overlong_buffer_len 600 is above --rollout.max_new_tokens 512: use at most 512",
    ),
    (["--reward.overlong_buffer_len", "3000"], "is above --data.max_len 2048: use at most 2048"),
    (["--algo.kl.target", "6", "--algo.kl.horizon", "0"], "--algo.kl.horizon 0: use 1 or more"),
    (["--algo.kl.target", "-6"], "--algo.kl.target -6.0: use a number above 0"),
    (["--actor.dual_clip", "0.5"], "--actor.dual_clip 0.5: use a number above 1"),
    (["--actor.eps_clip_low_high", "-0.2", "0.28"], "--actor.eps_clip_low_high -0.2 0.28: use two numbers"),
    (["--actor.eps_clip", "-0.2"], "--actor.eps_clip_low_high -0.2 -0.2: use two numbers"),
    (["--actor.adam.betas", "0.9", "1"], "--actor.adam.betas 0.9 1.0: use two numbers"),
    (["--actor.lr_scheduler", "cosin"], "--actor.lr_scheduler cosin: use constant_with_warmup"),
    (["--actor.lr_warmup_ratio", "10"], "--actor.lr_warmup_ratio 10.0: use a number from 0 to 1"),
    (["--ds.zero_stage", "4"], "--ds.zero_stage 4: use 0, 1, 2 or 3"),
    (["--ds.grad_accum_dtype", "float32"], "--ds.grad_accum_dtype float32: use fp32"),
    (["--ds.tensor_parallel_size", "1", "--ds.load_in_4bit", "--ds.param_dtype", "fp16"], "--ds.load_in_4bit needs"),
    (
        [CORRECTION + "level", "seq", CORRECTION + "mode", "clip"],
        "mode clip needs --algo.advantage.is_correction_level token",
    ),
    ([CORRECTION + "level", "token", CORRECTION + "gating", "tv"], "use one number for"),
    ([CORRECTION + "level", "token", CORRECTION + "threshold", "5", "0.5"], "threshold 5.0 0.5: use LOW HIGH"),
    (["--reward.remote_url", ""], "no reward is given: add --reward.remote_url"),
    (["--actor.model_name_or_path", ""], "--actor.model_name_or_path is not given"),
    (["--train.async_enable", "--train.async_queue_size", "0"], "--train.async_queue_size 0: use 1 or more"),
]


@pytest.mark.parametrize("flags, line", REFUSED, ids=[" ".join(flags) for flags, _ in REFUSED])
def test_a_value_that_fails_late_is_refused(arguments, refused, flags, line):
    assert line in refused(check_late_flags, arguments(*flags))


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--ckpt.save_steps", "-1", "--eval.steps", "-1"],
        [*EVAL, "--eval.temperature", "0"],
        ["--reward.overlong_buffer_len", "0"],
        ["--reward.stop_properly_penalty_coef", "-0.5"],
        ["--algo.kl.init_coef", "0", "--algo.kl.horizon", "0", "--ref.num_nodes", "0"],
        ["--train.max_tokens_per_gpu", "0"],
        ["--train.async_queue_size", "0"],
        ["--rollout.max_new_tokens", "2047"],
        ["--actor.lr_scheduler", "polynomial", "--actor.max_norm", "0", "--ckpt.max_mem", "inf"],
        [CORRECTION + "level", "token", CORRECTION + "gating", "binary_kl", CORRECTION + "threshold", "0.01"],
        ["--reward.remote_url", "", "--reward.model_name_or_path", "none"],
    ],
)
def test_a_value_that_means_something_passes(arguments, refused, flags):
    assert not refused(check_late_flags, arguments(*flags))


def test_every_row_is_a_flag_of_openrlhf(parsed):
    flags = vars(parsed())
    assert set(TABLE) <= set(flags) and set(DIVISORS) <= set(TABLE)


def test_the_defaults_pass(parsed, refused):
    """Each default of OpenRLHF's parser, with the flags that a run needs."""
    args = hierarchize(parsed())
    args.actor.eps_clip_low_high = (0.2, 0.2)
    assert not refused(check_late_flags, args)


@pytest.mark.parametrize(
    "flags, line",
    [
        (["--eval.dataset", "x.jsonl"], "--eval.dataset is never used without --eval.steps"),
        (["--eval.steps", "5"], "--eval.steps 5 has no effect without --eval.dataset"),
        ([], ""),
    ],
)
def test_evaluations_that_never_come_are_said(arguments, capsys, flags, line):
    check_late_flags(arguments(*flags))
    said = capsys.readouterr().out
    assert line in said and bool(line) == ("openrlhf_sagc: " in said)

"""What the command takes: OpenRLHF's flags as OpenRLHF takes them, this package's, and a line for anything else."""

import argparse
import os
import re
import subprocess
import sys

import pytest
from cpu_stack import ROOT
from openrlhf.cli import train_ppo_ray

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.flags import CommandParser, openrlhf_parser, parse_flags

THEIRS = train_ppo_ray.build_parser()


def lines_of(*words: str) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        parse_flags(words, add_arguments)
    lines = str(ended.value).splitlines()
    assert all(line.startswith("openrlhf_sagc: ") for line in lines)
    return [line.removeprefix("openrlhf_sagc: ") for line in lines]


def matching(option: str, parser: argparse.ArgumentParser) -> list[str]:
    return [flag for flag in parser._option_string_actions if flag.startswith(option)]


def test_the_parser_is_openrlhfs_own():
    ours = openrlhf_parser()
    shown = [re.sub(r"ppo_\d+T\d+:\d+", "", repr(parser._actions)) for parser in (ours, THEIRS)]
    assert shown[0] == shown[1] and len(ours._actions) > 150


def test_every_abbreviation_that_openrlhf_takes_is_still_taken():
    parser = CommandParser(openrlhf_parser(), add_arguments)
    values = {None: ["1"], 2: ["1", "1"], "+": ["1"], "*": ["1"], 0: []}
    tried = 0
    for flag, action in THEIRS._option_string_actions.items():
        given = [action.choices[0]] if action.choices else values[action.nargs]
        for end in range(3, len(flag)):
            if matching(flag[:end], THEIRS) != [flag] or action.dest == "help":
                continue
            tried += 1
            # The run's default name has the minute.
            words = ["--logger.wandb.run_name", "run", flag[:end], *given]
            theirs, ours = (parser.parse_args(words) for parser in (THEIRS, parser))
            assert vars(ours).items() >= vars(theirs).items(), flag[:end]
    assert tried > 1000


def test_our_flags_have_abbreviations_too_where_openrlhf_has_none():
    assert (
        parse_flags(["--rollout.tail_batching.prompt_r=1.5"], add_arguments).__dict__[
            "rollout.tail_batching.prompt_ratio"
        ]
        == 1.5
    )
    assert lines_of("--rollout.sagc.") == [
        "ambiguous option: --rollout.sagc. could match --rollout.sagc.enable, --rollout.sagc.group_sizes, "
        "--rollout.sagc.policy, --rollout.sagc.straggler_ratio and 6 more"
    ]


def test_values_are_those_that_openrlhfs_parser_returns():
    words = [
        "--actor.adam.betas",
        "0.9",
        "0.99",
        "--data.input_template",
        "--User: {}",
        "--train.seed=3",
        "--eval.te",
        "0",
    ]
    together = train_ppo_ray.build_parser()
    add_arguments(together)
    ours, theirs = vars(parse_flags(words, add_arguments)), vars(together.parse_args(words))
    assert ours.pop("logger.wandb.run_name") and theirs.pop("logger.wandb.run_name")
    assert ours == theirs


@pytest.mark.parametrize(
    "words, lines",
    [
        (["--pretrain", "m"], ["--pretrain is --actor.model_name_or_path since 0.10.2"]),
        (["--pretrain=m"], ["--pretrain is --actor.model_name_or_path since 0.10.2"]),
        (["--perf"], ["--perf has no successor since 0.10.2 (it had lost its effect): drop it"]),
        (["--l2", "0"], ["--l2 is --actor.adam.weight_decay and --critic.adam.weight_decay since 0.10.2"]),
        (["--train.batchsize", "4"], ["--train.batchsize is not a flag; the closest one is --train.batch_size"]),
        (
            ["--rollout.sagc.enabled"],
            ["--rollout.sagc.enabled is not a flag; the closest one is --rollout.sagc.enable"],
        ),
        (
            ["--qwerty", "4"],
            [
                "--qwerty is not a flag of OpenRLHF 0.11.2 or of this package: drop it, or look for another one in --help"
            ],
        ),
        (
            ["--pretrain", "m", "--zero_stage", "3", "--pretrain", "n"],
            [
                "--pretrain is --actor.model_name_or_path since 0.10.2",
                "--zero_stage is --ds.zero_stage since 0.10.2",
                "python -m openrlhf_sagc.migrate SCRIPT writes an old script anew",
            ],
        ),
        (["--train.batch_size", "x"], ["--train.batch_size: invalid int value: 'x': use a whole number"]),
        (["--train.batch_size"], ["--train.batch_size: expected one argument"]),
        (
            ["--vllm.engine_args", "max_num_seqs=512"],
            [
                "--vllm.engine_args: invalid loads value: 'max_num_seqs=512': use JSON in single quotes, such as "
                """'{"max_num_seqs": 512}'"""
            ],
        ),
        (
            ["--ds.packing_samples", "True"],
            ["--ds.packing_samples does not take True: drop it, or put quotes around a value with spaces"],
        ),
        (
            ["--ds.packing_samples=True"],
            ["--ds.packing_samples: ignored explicit argument 'True': the flag takes no value: write only the flag"],
        ),
        (["word\nword"], ["*** is not a flag: drop it, or look for the flag in --help"]),
        (
            ["-rollout.batch_size", "8", "--train.seed", "1", "-rollout.sagc.enable"],
            [
                "-rollout.batch_size has one dash, and flags have two: use --rollout.batch_size",
                "-rollout.sagc.enable has one dash, and flags have two: use --rollout.sagc.enable",
            ],
        ),
        (["-pretrain", "m"], ["--pretrain is --actor.model_name_or_path since 0.10.2"]),
        (["-x"], ["-x is not a flag: drop it, or look for the flag in --help"]),
    ],
)
def test_what_is_not_taken_is_said_in_a_line_each(words, lines):
    assert lines_of(*words) == lines


def test_a_wrong_choice_names_those_there_are():
    (line,) = lines_of("--algo.advantage.estimator", "grpo")
    assert "invalid choice: 'grpo' (choose from" in line and "group_norm" in line and "median" in line


def test_the_value_of_an_unknown_flag_is_not_printed():
    assert "secret" not in "".join(lines_of("--use_wandb=secret", "--wandb_kye=secret"))
    assert "secret" not in "".join(lines_of("https://user:secret@host/rm"))


def test_an_unknown_flag_is_said_before_torch_is_imported():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/build/cpu-patched"}
    command = [sys.executable, "-X", "importtime", "-m", "openrlhf_sagc", "--pretrain", "m"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    imported = {
        line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time:")
    }
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert said == ["openrlhf_sagc: --pretrain is --actor.model_name_or_path since 0.10.2"] and result.returncode == 1
    assert imported and not imported & {"torch", "vllm", "ray", "deepspeed", "transformers"}


def test_a_word_that_stands_twice_is_blamed_on_the_flag_that_does_not_take_it():
    (line,) = lines_of("--rollout.batch_size", "8", "--rollout.sagc.group_sizes=4", "8")
    assert line.startswith("--rollout.sagc.group_sizes does not take 8: ")
    (line,) = lines_of("--rollout.batch_size", "8", "8")
    assert line.startswith("--rollout.batch_size does not take 8: ")


@pytest.mark.parametrize(
    "words, advice",
    [
        (["--rollout.sagc.group_sizes", "4,8"], "put spaces between the values"),
        (["--algo.dynamic_filtering_range", "0,1"], "give both with a space between"),
        (["--algo.advantage.estimator", "grpo"], "group_norm is GRPO's estimator"),
    ],
)
def test_what_is_meant_is_said(words, advice):
    (line,) = lines_of(*words)
    assert line.endswith(advice)


def test_a_negative_number_is_a_value_however_it_is_written():
    """argparse by itself takes -1e-6 for a flag, and says that the learning rate has no value."""
    for text in ("-1e-6", "-1.5E+3", "-.5", "-1."):
        assert vars(parse_flags(["--actor.adam.lr", text], add_arguments))["actor.adam.lr"] == float(text)

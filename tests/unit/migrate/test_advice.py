"""What a person is told of a converted script."""

import csv

import pytest

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.flags import CommandParser, openrlhf_parser
from openrlhf_sagc.migrate.advice import DEFAULTS, advice
from openrlhf_sagc.migrate.convert import convert

PARSER = CommandParser(openrlhf_parser(), add_arguments)
VALUES = {action.option_strings[0]: action.default for action in PARSER._actions}
RUN = "python -m openrlhf.cli.train_ppo_ray "
SAME = "--micro_rollout_batch_size 8 --micro_train_batch_size 4 --flash_attn --vllm_gpu_memory_utilization 0.9 "
GROUPS = "--remote_rm_url r.py --advantage_estimator rloo --n_samples_per_prompt 8 "


def said(flags: str, more: str = "") -> list[str]:
    return list(advice(convert(f"{RUN}{flags}{more}".encode(), list(PARSER._option_string_actions)), VALUES))


def test_defaults_that_changed_are_said_with_what_keeps_them():
    assert said(GROUPS) == [
        "--rollout.micro_batch_size is not given: its default was 8 before 0.10.0 and is 1 today; to keep it add "
        "--rollout.micro_batch_size 8",
        "--train.micro_batch_size is not given: its default was 4 before 0.10.0 and is 1 today; to keep it add "
        "--train.micro_batch_size 4",
        "--vllm.gpu_memory_utilization is not given: its default was 0.9 before 0.6.4 and is 0.95 today; to keep it add "
        "--vllm.gpu_memory_utilization 0.9",
        "--ds.attn_implementation is not given: its default was eager before 0.8.10 and is flash_attention_2 today; to keep it "
        "add --ds.attn_implementation eager",
        "--rollout.max_new_tokens is not given: its default was 1024 before 0.9.8 and is no limit today; to keep it add "
        "--rollout.max_new_tokens 1024",
    ]


def test_what_is_given_or_came_later_is_not_said():
    assert said(GROUPS + SAME + "--prompt_max_len 9") == []
    newer = said(GROUPS + "--param_dtype bf16 --max_new_tokens 9")  # there is --param_dtype since 0.9.2
    assert [line.split()[0] for line in newer] == ["--rollout.micro_batch_size", "--train.micro_batch_size"]
    assert (
        said(
            "--ds.zero_stage 3 "
            + "--reward.remote_url r.py --algo.advantage.estimator rloo --rollout.n_samples_per_prompt 8"
        )
        == []
    )


def test_a_script_that_packs_had_flash_attention_and_dynamic_batches_have_no_micro_batches():
    names = [line.split()[0] for line in said(GROUPS + "--packing_samples")]
    assert "--ds.attn_implementation" not in names and "--train.micro_batch_size" in names
    names = [line.split()[0] for line in said(GROUPS + "--use_dynamic_batch")]
    assert not {"--ds.attn_implementation", "--rollout.micro_batch_size", "--train.micro_batch_size"} & {*names}


def test_several_reward_addresses_were_added_once():
    both = GROUPS.replace("r.py", "http://a/x,http://b/x")
    assert [
        line
        for line in said(both)
        if line.startswith("--reward.remote_url http://a/x,http://b/x: up to OpenRLHF 0.6.2")
    ]
    newer = said(both + "--async_train ")  # there is --async_train since 0.8.0
    assert not [line for line in newer + said(GROUPS) if "--reward.remote_url" in line]


def test_defaults_of_a_critic_are_those_of_a_run_with_one():
    assert not [line for line in said(GROUPS) if "critic" in line]
    assert [
        line for line in said("--seed 1") if line.startswith("--critic.value_clip is not given: its default was 0.2")
    ]


def test_defaults_are_flags_of_today_and_the_advice_is_taken():
    with DEFAULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        PARSER.parse_args([row["flag"], *row["default"].split()])
        assert str(VALUES[row["flag"]]) != row["default"]


@pytest.mark.parametrize(
    "flags, line",
    [
        (
            "",
            "python -m openrlhf_sagc needs groups: --algo.advantage.estimator gae has none, group_norm, dr_grpo, rloo, "
            "reinforce_baseline, median have; python -m openrlhf_sagc.off runs the script as it is",
        ),
        (
            "--advantage_estimator reinforce_pro_max",
            "OpenRLHF 0.11.2 has no --algo.advantage.estimator reinforce_pro_max: use one of group_norm, dr_grpo, rloo",
        ),
        ("--advantage_estimator reinforce", "--algo.advantage.estimator reinforce has none"),
        (
            GROUPS + "--rollout.vllm_generate_batch_size 256",
            "python -m openrlhf_sagc does not take --rollout.vllm_generate_batch_size 256: drop it, or start python -m "
            "openrlhf_sagc.off",
        ),
        (
            "--freezing_actor_steps 4",
            "does not take --critic.freezing_steps 4: drop it, or start python -m openrlhf_sagc.off",
        ),
        ("--advantage_estimator rloo", "--rollout.n_samples_per_prompt 1 is none, use 2 or more"),
        (
            "--reward_pretrain m --dynamic_filtering",
            "--algo.dynamic_filtering_enable needs the scores of --reward.remote_url or --train.agent",
        ),
    ],
)
def test_what_the_scheduler_and_dynamic_sampling_need(flags, line):
    assert any(line in text for text in said(flags))


def test_what_the_script_does_not_ask_for_is_not_spoken_of():
    assert not [line for line in said(GROUPS + "--reward_pretrain m") if "dynamic_filtering" in line]
    asks = GROUPS + "--rollout.vllm_generate_batch_size "  # the default of --rollout.batch_size is 1024
    assert not [line for line in said(asks + "1024") if "vllm_generate" in line]
    assert [line for line in said(asks + "128") if "does not take --rollout.vllm_generate_batch_size 128" in line]
    assert not [line for line in said(asks + "2048 --train.partial_rollout_enable") if "vllm_generate" in line]


def test_a_variable_may_be_right():
    assert not [line for line in said("--advantage_estimator $E --n_samples_per_prompt $N") if "needs groups" in line]


def test_other_entry_points_are_said_to_stay():
    lines = said(
        GROUPS + SAME + "--max_len 9 --param_dtype bf16 --max_new_tokens 9",
        "\n# python -m openrlhf.cli.train_ppo_ray --seed 1, as openrlhf.cli.train_rm"
        "\npython -m openrlhf.cli.train_ppo --seed 1\npython -m openrlhf.cli.serve_rm",
    )
    assert lines == [
        "openrlhf.cli.serve_rm stays: this converts only openrlhf.cli.train_ppo_ray",
        "openrlhf.cli.train_ppo stays: it trained without Ray, which OpenRLHF gave up in 0.6.1; write for train_ppo_ray",
    ]


@pytest.mark.parametrize(
    "line, named",
    [
        ("cd /openrlhf && ls", "cd /openrlhf"),
        ("(cd $ROOT; ls)", "cd $ROOT"),
        ("""R='{"working_dir": "/openrlhf", "pip": []}'""", "working_dir: /openrlhf"),
        ('R="{\\"working_dir\\": \\"/openrlhf\\"}"', "working_dir: /openrlhf"),
        ("""R='{"working_dir": "'${W}'/x"}'""", "working_dir: ${W}"),
        ('R="{\\"working_dir\\": \\"${W}/x\\"}"', "working_dir: ${W}/x"),
        ("ray job submit --working-dir . x", "--working-dir ."),
        ("export PYTHONPATH=/fork:$PYTHONPATH", "PYTHONPATH=/fork:$PYTHONPATH"),
        ("# cd /openrlhf", ""),
        ("echo cdrom", ""),
    ],
)
def test_folders_that_may_hold_a_fork_are_named(line, named):
    found = [text for text in said(GROUPS + SAME, f"\n{line}") if "another openrlhf" in text]
    assert [named] * len(found) == [text.partition("(line 2: ")[2].partition(")")[0] for text in found]
    assert bool(found) == bool(named)
    assert all(("ends (" in text) == named.startswith("cd") for text in found)

"""The table of renamed flags, and what is said of a flag that nobody knows."""

import pytest
from openrlhf.cli import train_ppo_ray

from openrlhf_sagc.config.renamed_flags import closest_flag, explain, renamed_flags

FLAGS = train_ppo_ray.build_parser()._option_string_actions


def test_every_successor_is_a_flag_of_today_and_no_old_flag_is():
    assert len(renamed_flags()) > 150
    for old in renamed_flags().values():
        assert old.flag not in FLAGS
        assert {word for word in old.successors if word.startswith("--")} <= FLAGS.keys(), old
        assert old.successors or old.note, f"{old.flag} says nothing"


def test_fixed_values_are_ones_that_the_parser_takes():
    parser = train_ppo_ray.build_parser()
    for old in renamed_flags().values():
        if any(not word.startswith("--") for word in old.successors):
            parser.parse_args(list(old.successors))


@pytest.mark.parametrize(
    "name, line",
    [
        ("--n_samples", "--n_samples is --rollout.n_samples_per_prompt since 0.10.2"),  # argparse took the beginning
        (
            "--pretrian",
            "--pretrian is not a flag; the closest one is --pretrain, which is --actor.model_name_or_path since",
        ),
        ("--max-len", "--max-len is not a flag; the closest one is --max_len, which is --data.max_len since 0.10.2"),
        ("--batch_size", "--batch_size is not a flag; the closest one is --"),
        (
            "--enable_vllm_is_correction",
            "is_correction_level token and --algo.advantage.is_correction_mode clip since",
        ),
        ("--ptx_coef", "--ptx_coef has no successor since 0.10.2 (the pretraining loss was removed): drop it"),
        ("--zzz", "--zzz is not a flag of OpenRLHF 0.11.2 or of this package: drop it"),
    ],
)
def test_explain(name, line):
    assert line in explain(name, FLAGS)


def test_one_wrong_letter_finds_the_flag():
    for flag in FLAGS:
        if len(flag) > 6:
            assert closest_flag(f"{flag[:-2]}x{flag[-1]}", FLAGS) == flag

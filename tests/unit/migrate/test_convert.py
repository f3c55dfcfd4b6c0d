"""What becomes of a launch script: the flags it has afterwards, and that nothing else in it has changed."""

import pytest
from openrlhf.cli import train_ppo_ray

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.flags import CommandParser, openrlhf_parser
from openrlhf_sagc.config.renamed_flags import renamed_flags
from openrlhf_sagc.migrate.convert import convert

TODAY = list(CommandParser(openrlhf_parser(), add_arguments)._option_string_actions)
RUN = "python -m openrlhf.cli.train_ppo_ray "


def converted(script: str) -> str:
    result = convert(script.encode(), TODAY).script
    assert convert(result, TODAY).script == result, "converted twice it is another"
    return result.decode()


def flags_of(flags: str) -> str:
    """The flags that a command with these has afterwards."""
    return converted(RUN + flags).removeprefix("python -m openrlhf_sagc").strip()


@pytest.mark.parametrize(
    "old, new",
    [
        ("--pretrain m --zero_stage=3", "--actor.model_name_or_path m --ds.zero_stage=3"),
        ("--input_template '--seed: {}'", "--data.input_template '--seed: {}'"),
        ("--n_samples 8", "--rollout.n_samples_per_prompt 8"),  # argparse took the beginning
        ("--bf16 --flash_attn", "--ds.param_dtype bf16 --ds.attn_implementation flash_attention_2"),
        ("--perf --ptx_coef 0.1 --seed 1 --actor_init_on_gpu", "--train.seed 1"),
        ("--seed 1 --pretrain_data a b", "--train.seed 1 b"),  # b is the mistake of whoever wrote it
        # one flag became two, of which a run without a critic needs one
        ("--l2 0.1", "--actor.adam.weight_decay 0.1 --critic.adam.weight_decay 0.1"),
        (
            "--adam_betas 0.9 0.95 --advantage_estimator rloo",
            "--actor.adam.betas 0.9 0.95 --algo.advantage.estimator rloo",
        ),
        ('--l2="$X" --advantage_estimator rloo', '--actor.adam.weight_decay="$X" --algo.advantage.estimator rloo'),
        ("--max_norm=$N", "--actor.max_norm=$N --critic.max_norm=$N"),
        ("--ref_reward_offload", "--ref.offload --reward.offload"),
        # two lengths became their sum
        ("--prompt_max_len 512 --generate_max_len 100", "--data.max_len 612 --rollout.max_new_tokens 100"),
        ("--generate_max_len 100 --prompt_max_len 512", "--rollout.max_new_tokens 100 --data.max_len 612"),
        ("--prompt_max_len $P --generate_max_len ${G}", "--data.max_len $(($P+${G})) --rollout.max_new_tokens ${G}"),
        ("--prompt_max_len=$P", "--data.max_len=$(($P+1024)) --rollout.max_new_tokens=1024"),
        ("--generate_max_len 100", "--rollout.max_new_tokens 100 --data.max_len 1124"),
        ("--max_len 4096 --prompt_max_len 1 --generate_max_len 2", "--data.max_len 4096 --rollout.max_new_tokens 2"),
        ("--max_len $M --prompt_max_len 1", "--data.max_len $((1+1024>$M?1+1024:$M)) --rollout.max_new_tokens 1024"),
        ("--max_len 4096 --max_new_tokens 9", "--data.max_len 4096 --rollout.max_new_tokens 9"),
        # TIS is a level and a mode, and its type was a flag of its own
        (
            "--enable_vllm_is_correction",
            "--algo.advantage.is_correction_level token --algo.advantage.is_correction_mode clip",
        ),
        (
            "--vllm_is_correction_type seq-mask-tis --enable_vllm_is_correction --vllm_is_truncated_threshold 2",
            "--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode mask "
            "--algo.advantage.is_correction_threshold 2",
        ),
        (
            "--algo.advantage.is_correction_enable --algo.advantage.is_correction_type icepop",
            "--algo.advantage.is_correction_level token --algo.advantage.is_correction_mode mask",
        ),
        (
            "--use_icepop --enable_vllm_is_correction",
            "--algo.advantage.is_correction_level token --algo.advantage.is_correction_mode mask",
        ),
        ("--vllm_is_correction_type tis --seed 1", "--train.seed 1"),
    ],
)
def test_flags(old, new):
    assert flags_of(old) == new


def test_every_old_flag_becomes_flags_that_the_parser_takes():
    kinds = {action.option_strings[0]: action for action in train_ppo_ray.build_parser()._actions}
    for old in renamed_flags().values():
        action = kinds[old.successors[0]] if old.successors else None
        value = "1" if action is None or not action.choices else action.choices[0]
        words = flags_of(" ".join([old.flag, *[value] * old.values])).split()
        CommandParser(openrlhf_parser(), add_arguments).parse_args(words)
        assert bool(words) == bool(old.successors) or old.flag.endswith(("_type", "icepop")), old.flag


@pytest.mark.parametrize(
    "old, new",
    [
        (
            f'bash -c "{RUN}--prompt_max_len \\$P --generate_max_len 9"',
            "--data.max_len \\$((\\$P+9)) --rollout.max_new_tokens 9",
        ),
        (f'bash -c "{RUN}\\"--bf16\\" --perf"', '\\"--ds.param_dtype\\" \\"bf16\\"'),
        (
            f"cat >x <<EOF\n{RUN}--perf \\\\\n --l2 \\$L\nEOF",
            "--actor.adam.weight_decay \\$L --critic.adam.weight_decay \\$L\nEOF",
        ),
    ],
)
def test_texts_that_bash_expands_twice(old, new):
    assert new in converted(old) and "perf" not in converted(old)


SCRIPT = r"""#!/bin/bash
#SBATCH --nodes 2
set -x
# --pretrain in a comment
EXTRA="--use_kl_loss --lambd 1"
COMMON=(
    --pretrain "$MODEL"    # the policy
    --perf                 # timings
    # --normalize_reward
    '--bf16' "--prompt_max_len" "$P"
    --input_template $'User: {}\n'
)
[ "$SMALL" = 1 ] && COMMON+=("--l2=0.1" --zero_stage 2)
python serve_rm.py --reward_pretrain r --max_len 2048 --bf16
ray start --head --num-gpus 8 --seed 3
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"a": "--pretrain"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --generate_max_len 100 \
   --disable_trace_cache \
   --n_samples_per_prompt=8 ${COMMON[@]} $EXTRA \
   --ptx_coef 0.1 > train.log 2>&1 &
"""
NEW_SCRIPT = r"""#!/bin/bash
#SBATCH --nodes 2
set -x
# --pretrain in a comment
EXTRA="--algo.kl.use_loss --algo.advantage.lambd 1"
COMMON=(
    --actor.model_name_or_path "$MODEL"    # the policy
                     # timings
    # --normalize_reward
    '--ds.param_dtype' 'bf16' "--data.max_len" "$(($P+100))"
    --data.input_template $'User: {}\n'
)
[ "$SMALL" = 1 ] && COMMON+=("--actor.adam.weight_decay=0.1" "--critic.adam.weight_decay=0.1" --ds.zero_stage 2)
python serve_rm.py --reward_pretrain r --max_len 2048 --bf16
ray start --head --num-gpus 8 --seed 3
ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"a": "--pretrain"}' \
   -- python3 -m openrlhf_sagc \
   --rollout.max_new_tokens 100 \
   --rollout.n_samples_per_prompt=8 ${COMMON[@]} $EXTRA > train.log 2>&1 &
"""


def test_all_but_the_flags_stays():
    assert converted(SCRIPT) == NEW_SCRIPT
    assert converted(SCRIPT.replace("\n", "\r\n")) == NEW_SCRIPT.replace("\n", "\r\n")


def test_a_script_of_today_changes_in_the_name_of_the_module_alone():
    script = NEW_SCRIPT.replace("openrlhf_sagc", "openrlhf.cli.train_ppo_ray")
    assert converted(script) == NEW_SCRIPT
    ours = "python -m openrlhf_sagc --rollout.sagc.enable --train.seed 1 --no_flag 3\n"
    assert converted(ours) == ours  # also what it has wrong


@pytest.mark.parametrize(
    "old, new",
    [
        ("python examples/train_ppo_ray.py --seed 1", "python -m openrlhf_sagc --train.seed 1"),
        ('python "$ROOT/openrlhf/cli/train_ppo_ray.py" --seed 1', "python -m openrlhf_sagc --train.seed 1"),
        (
            "deepspeed --num_gpus 8 \\\n  $DIR/train_ppo_ray.py --seed 1",
            "deepspeed --num_gpus 8 \\\n  --module openrlhf_sagc --train.seed 1",
        ),
        ("torchrun -m openrlhf.cli.train_ppo_ray --seed 1", "torchrun -m openrlhf_sagc --train.seed 1"),
    ],
)
def test_the_entry_point_in_all_its_forms(old, new):
    assert converted(old) == new


@pytest.mark.parametrize("name", ["train_ppo_ray_vlm", "train_sft", "serve_rm", "train_ppo"])
def test_other_entry_points_stay(name):
    script = f"python -m openrlhf.cli.{name} --pretrain m --seed 1\n"
    conversion = convert(script.encode(), TODAY)
    assert conversion.script.decode() == script and not conversion.trainings


def test_flags_that_no_version_has_are_dropped_and_said():
    conversion = convert(f"{RUN}--freeze_prefix a b --zero_stag 3 --seed 1 $X\n".encode(), TODAY)
    assert conversion.script.decode() == "python -m openrlhf_sagc --ds.zero_stage 3 --train.seed 1 $X\n"
    assert conversion.notes == [
        "--freeze_prefix a b is dropped: no version of OpenRLHF has it",
        "$X is set elsewhere and stays: convert the flags that it has by hand",
    ]
    assert (conversion.unknown, conversion.old, len(conversion.flags)) == (1, 2, 3)
    conversion = convert(f"{RUN}--zero_satge 3\n".encode(), TODAY)
    assert conversion.notes == [
        "--zero_satge 3 is dropped: no version of OpenRLHF has it; if --zero_stage is meant, add --ds.zero_stage"
    ]


def test_a_variable_that_holds_flags_is_no_value_of_the_flag_before_it():
    script = f'MORE="--seed 1"\nNAME=x\n{RUN}--perf $MORE --fork_flag $NAME --other_fork "$MORE" --top_p 1\n'
    assert converted(script).splitlines()[2] == 'python -m openrlhf_sagc $MORE "$MORE" --rollout.top_p 1'


def test_arithmetic_in_a_text_is_one_value():
    script = f'bash -c "{RUN}--l2 $((N - 1)) --seed 1"'
    new = 'bash -c "python -m openrlhf_sagc --actor.adam.weight_decay $((N - 1)) --critic.adam.weight_decay $((N - 1)) --train.seed 1"'
    assert converted(script) == new


def test_other_encodings_and_missing_values_are_no_error():
    conversion = convert(
        f"{RUN}--l2 \xe9 --enable_vllm_is_correction --vllm_is_correction_type".encode("latin-1"), TODAY
    )
    assert b"--actor.adam.weight_decay \xe9 --critic.adam.weight_decay \xe9 --algo" in conversion.script
    assert "without a value is taken for tis" in conversion.notes[0]


def test_a_correction_whose_type_is_a_variable_is_said():
    conversion = convert(f"{RUN}--enable_vllm_is_correction --vllm_is_correction_type $T".encode(), TODAY)
    assert "--vllm_is_correction_type $T is taken for tis: set level and mode by hand" in conversion.notes[0]


@pytest.mark.parametrize(
    "old, new",
    [
        ('E=${E:-"--bf16 --seed 1"}\n{}$E\n', 'E=${E:-"--ds.param_dtype bf16 --train.seed 1"}\n{}$E\n'),
        ('K="${K:---seed 1 --bf16}"\n{}$K\n', 'K="${K:---train.seed 1 --ds.param_dtype bf16}"\n{}$K\n'),
        (': "${M:=--seed 1}"\n{}$M\n', ': "${M:=--train.seed 1}"\n{}$M\n'),
        ("{}${D:+--seed 1}\n", "{}${D:+--train.seed 1}\n"),
        # a value without quotes: bash would run a second word as a command
        ("P=--bf16\n{}$P\n", 'P="--ds.param_dtype bf16"\n{}$P\n'),
        ("[ $A = 1 ] && P=--bf16\n{}$P\n", '[ $A = 1 ] && P="--ds.param_dtype bf16"\n{}$P\n'),
        ("export P=--flash_attn\n{}$P\n", 'export P="--ds.attn_implementation flash_attention_2"\n{}$P\n'),
        (
            "C=\"{}--seed 1\"\nC+=' --pretrain m'\neval $C\n",
            "C=\"{}--train.seed 1\"\nC+=' --actor.model_name_or_path m'\neval $C\n",
        ),
        # what is read from elsewhere is no list of flags, and no error
        (
            "read a && foo > x\nread a || { echo b; } > x\n{}--seed 1\n",
            "read a && foo > x\nread a || { echo b; } > x\n{}--train.seed 1\n",
        ),
    ],
)
def test_flags_wherever_bash_may_have_them(old, new):
    assert converted(old.replace("{}", RUN)) == new.replace(
        "{}", RUN.replace("openrlhf.cli.train_ppo_ray", "openrlhf_sagc")
    )


@pytest.mark.parametrize("script", ["train_ppo_ray.py --seed 1\n", "./train_ppo_ray.py --seed 1\n"])
def test_a_file_that_is_run_by_itself(script):
    assert converted(script) == "python -m openrlhf_sagc --train.seed 1\n"


def test_a_backslash_behind_the_last_word_is_no_broken_line():
    script = f"set -e\n{RUN} --seed 1 \\\n"
    assert not [note for note in convert(script.encode(), TODAY).notes if "could not be read" in note]
    assert [note for note in convert(b"if then ) fi\n" + script.encode(), TODAY).notes if "could not be read" in note]


def test_no_flag_is_suggested_that_is_there():
    notes = convert(f"{RUN} --eval.steps 5 --eval_stepz 5".encode(), TODAY).notes
    assert notes == ["--eval_stepz 5 is dropped: no version of OpenRLHF has it"]


KEPT = """{run} --pretrain m \\
  --my_fork_flag 3 $([ -n "$K" ] && echo "--use_wandb $K") \\
  --fork ${WANDB_FLAGS} $EXTRA_ARGS \\
  `[ -n "$K" ] && echo "--use_kl_loss"` $(if [ "$B" = 1 ]; then echo --perf --bf16; fi) --seed 3
"""


def test_expansions_behind_a_flag_of_a_fork_stay_and_flags_in_them_are_converted():
    conversion = convert(KEPT.replace("{run}", RUN.strip()).encode(), TODAY)
    assert conversion.script.decode() == (
        'python -m openrlhf_sagc --actor.model_name_or_path m $([ -n "$K" ] && echo "--logger.wandb.key $K") ${WANDB_FLAGS} '
        '$EXTRA_ARGS \\\n  `[ -n "$K" ] && echo "--algo.kl.use_loss"` '
        '$(if [ "$B" = 1 ]; then echo --ds.param_dtype bf16; fi) --train.seed 3\n'
    )
    assert "--my_fork_flag 3 is dropped: no version of OpenRLHF has it" in conversion.notes
    assert "$EXTRA_ARGS is set elsewhere and stays: convert the flags that it has by hand" in conversion.notes
    assert (conversion.unknown, conversion.unseen, len(conversion.flags)) == (2, 0, 8)


@pytest.mark.parametrize(
    "text",
    [
        'bash -c "{} --seed 1 --bf16"',
        "ssh h '{} --seed 1 --bf16' && ls",
        'bash -c \\"{} --seed 1 \\$([ \\$K ] && echo \\"--perf --bf16\\")\\"',
        'bash -c \\"{} --seed 1 --bf16\\"',
        'echo don\'t; bash -c "{} --seed 1 --bf16"',
        'bash -c "{} --l2 1 --bf16" && bash -c "{} --seed 1 --bf16"',
    ],
)
def test_the_last_flag_before_the_quote_of_a_command_in_a_document(text):
    script = "cat >job.sh <<EOF\n" + text.replace("{}", RUN.strip()) + "\nEOF\n"
    new = script.replace("--seed", "--train.seed").replace("--bf16", "--ds.param_dtype bf16").replace("--perf ", "")
    new = new.replace("--l2 1", "--actor.adam.weight_decay 1 --critic.adam.weight_decay 1")
    assert converted(script) == new.replace("openrlhf.cli.train_ppo_ray", "openrlhf_sagc")


def test_a_flag_whose_training_is_not_seen_is_named_and_counted():
    script = f"F() {{\n  O='--bf16 --seed 2'\n}}\n# --perf\nray start --num-gpus 8\npython x.py --pretrain m\n{RUN} --seed 1 $(F)\n"
    conversion = convert(script.encode(), TODAY)
    assert conversion.unseen == 2
    assert conversion.notes == [
        "line 2: --bf16 stays, as nothing shows that it is the training's: if it is, write --ds.param_dtype bf16",
        "line 2: --seed stays, as nothing shows that it is the training's: if it is, write --train.seed",
        "$(F) is set elsewhere and stays: convert the flags that it has by hand",
    ]

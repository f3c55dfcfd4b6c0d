"""The 7B recipe against OpenRLHF's own DAPO script: the page has a reason for every flag that differs."""

import re

import pytest
from cpu_stack import ROOT
from launched import pairs

from openrlhf_sagc.config.flags import openrlhf_parser

# Flags and values of examples/scripts/train_dapo_ray_hybrid_engine.sh in OpenRLHF 0.11.0. Its is_correction_enable
# is is_correction_level in 0.11.2.
OPENRLHF = """
--ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 4
--vllm.tensor_parallel_size 2 --train.colocate_all --vllm.gpu_memory_utilization 0.6 --algo.kl.init_coef 1e-3
--algo.advantage.gamma 1.0 --algo.kl.use_loss --algo.kl.estimator k3 --algo.advantage.estimator group_norm
--algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1 --actor.eps_clip_low_high 0.2 0.27
--actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture --reward.remote_url /openrlhf/examples/python/reward_func.py
--ckpt.output_dir /openrlhf/examples/test_scripts/final/llama3-8b-rlhf
--ckpt.path /openrlhf/examples/test_scripts/ckpt/llama3-8b-rlhf --ckpt.save_steps 20 --ckpt.save_hf --train.micro_batch_size 8
--train.batch_size 128 --rollout.micro_batch_size 16 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8
--train.max_epochs 1 --data.max_len 2048 --data.max_samples 20000 --ds.zero_stage 3 --ds.param_dtype bf16 --actor.adam.lr 5e-7
--data.prompt_dataset OpenRLHF/prompt-collection-v0.1 --data.input_key context_messages --data.apply_chat_template
--actor.gradient_checkpointing_enable --ds.packing_samples --vllm.sync_backend nccl --vllm.enforce_eager --vllm.enable_sleep
--ds.enable_sleep --algo.advantage.is_correction_level token
"""
HEADING = "## What differs from OpenRLHF's own DAPO script"


@pytest.fixture(scope="module")
def rows():
    """Flags of each row of the page, and what it says of them."""
    section = (ROOT / "docs/launch_scripts.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| `--")]
    return [(re.findall(r"`(--[a-z_.]+)`", flags), change, why) for flags, change, why in lines]


def test_every_flag_that_differs_has_its_reason(flags_of, rows):
    ours = {pair[0]: pair[1:] for pair in pairs(flags_of("dapo_qwen2.5_7b.sh", SAGC="off"))}
    theirs = {pair[0]: pair[1:] for pair in pairs(OPENRLHF.split())}
    differing = {flag for flag in ours.keys() | theirs.keys() if ours.get(flag) != theirs.get(flag)}
    named = [flag for flags, *_ in rows for flag in flags]
    assert sorted(named) == sorted(differing) and len(rows) > 10
    assert all(len(why) > len("the |") for *_, why in rows)


def test_what_is_said_to_be_the_default_is(flags_of, rows):
    (flags,) = [flags for flags, _, why in rows if "OpenRLHF's default" in why]
    given = [*pairs(OPENRLHF.split()), *pairs(flags_of("dapo_qwen2.5_7b.sh", SAGC="off"))]
    for flag, *words in (pair for pair in given if pair[0] in flags):
        parsed, default = (vars(openrlhf_parser().parse_args(line)) for line in ([flag, *words], []))
        name = flag.removeprefix("--")
        found, expected = (given[name] for given in (parsed, default))
        assert found == expected or [*found] == [*expected], flag

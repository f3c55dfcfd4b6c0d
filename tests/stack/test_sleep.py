"""Engines and actors that take turns on the same devices, as the GPU recipes have them: who sleeps when."""

import re

import pytest
from real_runs import AGENTS

pytestmark = pytest.mark.stack
ROLLED_OUT = "wk[ga]+s"  # awake for weights and KV cache, then all rollouts are back, or stopped, before the sleep
EVALUATED = "wkg+sa"  # OpenRLHF's evaluation lets engines sleep by itself, before what an agent left behind is ended
SYNCED = "wu+"


def test_engines_sleep_when_all_rollouts_are_back_and_wake_for_the_weights(train, task, tmp_path, monkeypatch):
    """Tail batching stops rollouts in every step; every second step is evaluated.

    On a CPU a sleeping engine keeps its memory, but decodes nothing, and DeepSpeed's states move as on a GPU.
    """
    log = tmp_path / "engine"
    monkeypatch.setenv("ENGINE_LOG", str(log))
    steps = train(
        "cpu-patched",
        reward__remote_url=None,
        train__agent_func_path=AGENTS / "recording_agent.py",
        train__colocate_all=True,
        vllm__enable_sleep=True,
        ds__enable_sleep=True,
        ds__param_dtype="fp32",
        ds__zero_stage=3,
        ds__packing_samples=True,
        ds__attn_implementation="sdpa",
        train__dynamic_batch_enable=True,
        train__max_tokens_per_gpu=512,
        actor__gradient_checkpointing_enable=True,
        rollout__tail_batching__enable=True,
        rollout__tail_batching__method="stop",
        rollout__tail_batching__response_ratio=1.25,
        train__batch_size=32,
        eval__dataset=task / "prompts.jsonl",
        eval__steps=2,
        eval__n_samples_per_prompt=1,
        ckpt__path=tmp_path / "checkpoints",
    ).scalars
    asked = log.read_text()
    assert re.fullmatch(f"s({ROLLED_OUT}{SYNCED}({EVALUATED})?)+", asked), re.sub("(.)\\1+", "\\1+", asked)
    assert asked.count("a") > 0 and len(re.findall(SYNCED, asked)) == len(steps)

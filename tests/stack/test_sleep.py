"""Engines and actors that take turns on the same devices, as the GPU recipes have them: who sleeps when."""

import re

import pytest
from real_runs import AGENTS, actor_process

pytestmark = pytest.mark.stack
ROLLED_OUT = "wk[ga]+s"  # awake for weights and KV cache, then all rollouts are back, or stopped, before the sleep
EVALUATED = "wkg+sa"  # OpenRLHF's evaluation lets engines sleep by itself, before what an agent left behind is ended
SYNCED = "wu+"
STEPS = 6  # of 48 prompts, 8 a step


COLOCATED = {
    "reward__remote_url": None,
    "train__agent_func_path": AGENTS / "recording_agent.py",
    "train__colocate_all": True,
    "vllm__enable_sleep": True,
    "ds__enable_sleep": True,
    "ds__param_dtype": "fp32",
    "ds__zero_stage": 3,
    "ds__packing_samples": True,
    "ds__attn_implementation": "sdpa",
    "train__dynamic_batch_enable": True,
    "train__max_tokens_per_gpu": 512,
    "actor__gradient_checkpointing_enable": True,
    "rollout__tail_batching__enable": True,
    "rollout__tail_batching__method": "stop",
    "rollout__tail_batching__response_ratio": 1.25,
    "train__batch_size": 32,
}


@pytest.fixture
def log(tmp_path, monkeypatch):
    """What the engine was asked, a letter each."""
    log = tmp_path / "engine"
    monkeypatch.setenv("ENGINE_LOG", str(log))
    return log


def test_engines_sleep_when_all_rollouts_are_back_and_wake_for_the_weights(train, task, tmp_path, log):
    """Tail batching stops rollouts in every step; every second step is evaluated.

    On a CPU a sleeping engine keeps its memory, but decodes nothing, and DeepSpeed's states move as on a GPU.
    """
    evaluated = {"eval__dataset": task / "prompts.jsonl", "eval__steps": 2, "eval__n_samples_per_prompt": 1}
    steps = train("cpu-patched", **COLOCATED, **evaluated, ckpt__path=tmp_path / "checkpoints").scalars
    asked = log.read_text()
    assert re.fullmatch(f"s({ROLLED_OUT}{SYNCED}({EVALUATED})?)+", asked), re.sub("(.)\\1+", "\\1+", asked)
    assert asked.count("a") > 0 and len(re.findall(SYNCED, asked)) == len(steps)


def test_an_engine_that_is_killed_asleep_ends_the_run_in_a_line_and_no_prompt_is_lost(train, tmp_path, log):
    checkpoints = {"ckpt__path": tmp_path / "checkpoints", "ckpt__save_steps": 1}

    def sleeps(output: str) -> bool:
        """In the training of its second step or a later one."""
        return log.exists() and bool(re.fullmatch(f"s({ROLLED_OUT}{SYNCED})+{ROLLED_OUT}", log.read_text()))

    killed = train(
        "cpu-patched",
        **COLOCATED,
        **checkpoints,
        kill_at=sleeps,
        victim=lambda output: actor_process(output, "RolloutRayActor"),
    )
    assert re.search(
        r"^openrlhf_sagc: RolloutRayActor .* has died: .* --ckpt.load_enable", killed.output, re.MULTILINE
    )
    log.write_text("")
    resumed = train("cpu-patched", **COLOCATED, **checkpoints, ckpt__load_enable=True).scalars
    assert 0 < len(resumed) < STEPS and resumed.index[-1] == STEPS

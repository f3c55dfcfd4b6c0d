"""Drafts on a real engine: responses are distributed as without, and come in fewer iterations."""

import subprocess

import numpy as np
import pytest
import torch
from cpu_stack import ROOT
from filelock import FileLock
from real_runs import AGENTS
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.stack
LEAST = 0.001  # p of a difference
PERMUTATIONS = 2000


@pytest.fixture(scope="session")
def model(task, session_folder):
    """A model whose next tokens are as unequally likely as a trained one's, so that many drafts are right."""
    folder = session_folder / "peaked"
    with FileLock(session_folder / "peaked.lock"):
        if not folder.exists():
            folder.mkdir()
            peaked = AutoModelForCausalLM.from_pretrained(task / "model")
            with torch.no_grad():
                peaked.model.norm.weight *= 40
            peaked.save_pretrained(folder / "model")
            AutoTokenizer.from_pretrained(task / "model").save_pretrained(folder / "model")
            (folder / "prompts.jsonl").write_text((task / "prompts.jsonl").read_text())
    return folder / "model"


@pytest.fixture(scope="session")
def sample(model, python, session_folder):
    """sample(*cases): what drafting_engine.py has for each."""

    def run(*cases):
        command = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-patched", python]
        command += [ROOT / "tests/stack/drafting_engine.py", model, session_folder, *cases]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return [np.load(session_folder / f"{case}.npz") for case in cases]

    return run


def test_responses_are_distributed_as_without_drafts(sample):
    (off,) = sample("off")
    on, unrepaired, greedy = sample("on", "unrepaired", "greedy")
    assert (off["texts"] >= 0).sum() > 50_000 and (on["texts"] >= 0).sum() > 50_000
    assert on["texts"].shape == off["texts"].shape
    assert on["accepted"] > 0.05 * on["iterations"] and on["accepted"] < 0.95 * on["drafted"]
    assert min(difference(off, on)) > LEAST or min(difference(off, *sample("on"))) > LEAST  # by chance once in 300
    assert min(difference(off, unrepaired)) < LEAST
    assert min(difference(off, greedy)) < LEAST


def difference(one, other) -> list[float]:
    """p of first tokens by prompt, of lengths and of pairs of tokens, by permutations of the responses."""
    tokens, prompts = (np.concatenate([one[name], other[name]]) for name in ("texts", "prompts"))
    words = tokens.max() + 1
    lengths = (tokens >= 0).sum(1)
    pairs = np.zeros((len(tokens), words * words), np.float32)
    for row, text in zip(pairs, tokens):
        text = text[text >= 0]
        np.add.at(row, text[:-1] * words + text[1:], 1)
    firsts = np.eye(words * (prompts.max() + 1), dtype=np.float32)[prompts * words + tokens[:, 0]]
    spans = np.eye(tokens.shape[1] + 1, dtype=np.float32)[lengths]
    labels = np.arange(len(tokens)) < len(one["texts"])
    random = np.random.default_rng(0)
    drawn = np.stack([labels, *(random.permutation(labels) for _ in range(PERMUTATIONS))]).astype(np.float32)
    return [p_of(drawn, counts[:, counts.sum(0) > 0]) for counts in (firsts, spans, pairs)]


def p_of(labels, counts) -> float:
    """Share of the permutations whose two sets of counts differ as much as the first's."""
    total, first = counts.sum(0), labels @ counts
    chi = ((first - total * labels.mean()) ** 2 / total).sum(1)
    return float((chi >= chi[0] * (1 - 1e-6)).mean())


MODES = {
    "rounds that stop, a filter, evaluations": {
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        "algo__dynamic_filtering_enable": True,
        "eval__steps": 2,
        "eval__n_samples_per_prompt": 2,
    },
    "sorted, placed, streamed": {
        "rollout__tail_batching__enable": True,
        "rollout__length_aware_dispatch": True,
        "train__stream": "auto",
    },
    "as on GPUs": {
        "rollout__tail_batching__enable": True,
        "train__colocate_all": True,
        "vllm__enable_sleep": True,
        "ds__enable_sleep": True,
        "ds__zero_stage": 3,
        "ds__packing_samples": True,
        "ds__attn_implementation": "sdpa",
        "train__dynamic_batch_enable": True,
        "train__max_tokens_per_gpu": 512,
        "train__batch_size": 32,
        "actor__gradient_checkpointing_enable": True,
    },
    "asynchronous": {"train__async_enable": True},
    "partial rollouts": {
        "train__async_enable": True,
        "train__partial_rollout_enable": True,
        "algo__dynamic_filtering_enable": True,
        "algo__dynamic_filtering_surplus": "keep",
    },
    "agents": {"reward__remote_url": None, "train__agent_func_path": AGENTS / "scripted_agent.py"},
}


@pytest.mark.in_turns
@pytest.mark.parametrize("mode", MODES)
def test_runs_of_each_mode_draft(train, model, mode, tmp_path, monkeypatch):
    """Of as many samples as without; the engine's log-probabilities are the actor's where the policy samples them whole.

    How much is drafted depends on the machine, on which few drafts pay.
    """
    monkeypatch.setenv("ROLLOUT_LOG", str(tmp_path / "rollouts"))
    data = {"eval__dataset": model.parent / "prompts.jsonl"} if "eval__steps" in MODES[mode] else {}
    flags = {"rollout__drafts": "siblings", "actor__model_name_or_path": model, "train__num_episodes": 2}
    flags["ckpt__path"] = tmp_path / "checkpoints"  # of the best evaluation
    flags["actor__adam__lr"] = 1e-6  # a larger one soon has no group left that passes a filter
    steps = train("cpu-patched", **flags, **MODES[mode], **data).scalars
    assert (steps["rollout/num_samples"] == 64).all()
    assert steps["rollout/tokens_per_iteration"].min() >= 1 < steps["rollout/tokens_per_iteration"].max()
    assert 0 <= steps["rollout/draft_acceptance"].min() < 1 and 0 < steps["rollout/draft_mib"].max() < 50
    if "train__async_enable" not in MODES[mode] and mode != "agents":
        assert steps["vllm_kl"].abs().max() < 0.01

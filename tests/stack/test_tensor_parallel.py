"""Engines of two workers each, as the larger recipes have them: tensor parallelism on vLLM's CPU backend."""

import pytest
import torch
from test_training import MOVING
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]


@pytest.fixture
def model(task, tmp_path):
    """The task's untrained model, but with heads that two workers can share."""
    heads = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.from_pretrained(task / "deep", **heads)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(task / "deep").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_engines_of_two_workers_place_and_stop_rollouts_and_get_the_weights(train, model, monkeypatch):
    """Rollouts of a prompt are spread over two engines, and its last ones are stopped."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # vLLM would give each worker a core of its own
    run = train(
        "cpu-patched",
        **MOVING,
        actor__model_name_or_path=model,
        ds__param_dtype="fp32",
        vllm__num_engines=2,
        vllm__tensor_parallel_size=2,
        rollout__tail_batching__enable=True,
        rollout__tail_batching__method="stop",
        rollout__tail_batching__response_ratio=1.25,
        rollout__length_aware_dispatch=True,
    )
    assert "tensor_parallel_size=2" in run.output and (run.scalars["rollout/num_samples"] == 64).all()
    moved = run.scalars["kl"].max()  # a step of short responses alone has moved less
    assert run.scalars["vllm_kl"].abs().max() < 1e-3 < 0.05 * moved
    assert run.scalars["dynamic_filtering/aborted_tokens"].max() > 0

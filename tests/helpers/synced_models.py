"""vLLM's models after a weight sync of a GPU, one weight a call, and after one that gives them all at once.

    python -m synced_models

prints a line of JSON: for each model the number of its parameters, and the names of those that differ. Where no weight
has come, a parameter is NaN, and differs.
"""

import json
import os
import tempfile
from types import SimpleNamespace
from unittest import mock

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import torch  # noqa: E402
from openrlhf.trainer.ray import utils  # noqa: E402
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402
from vllm.model_executor.models import registry  # noqa: E402

SIZES = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
CONFIGS = {
    "Qwen2": Qwen2Config(**SIZES),
    "Qwen2, tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "Qwen3": Qwen3Config(**SIZES, head_dim=32),
    "Llama": LlamaConfig(**SIZES),
}


def empty_model(config) -> torch.nn.Module:
    """vLLM's model, all of whose parameters are NaN."""
    config.compilation_config.static_forward_context.clear()  # has the layers of the one before
    model = initialize_model(config)
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    return model


def sync_one_by_one(model, weights) -> None:
    """As engines get weights from actors on the same GPU; the handle stands for what CUDA's memory would give."""
    worker = SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        device=torch.device("cuda", 0),
        model_runner=SimpleNamespace(model=model),
    )
    with mock.patch.object(utils, "get_physical_gpu_id", lambda: "GPU"), mock.patch("torch.cuda.synchronize"):
        for name, weight in weights:
            handles = {"GPU": (lambda *arguments, weight=weight: weight, range(7))}
            WorkerWrap.update_weight_cuda_ipc(worker, name, weight.dtype, weight.shape, handles)


def compared(folder: str, config) -> dict[str, list[str]]:
    torch.manual_seed(0)
    trained = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for parameter in trained.parameters():  # transformers begins with biases of 0 and norms of 1
        parameter.data.normal_()
    trained.save_pretrained(folder)
    arguments = EngineArgs(folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=128)
    config = arguments.create_engine_config()
    weights = [(name, parameter.data) for name, parameter in trained.named_parameters()]  # as the sync takes them
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
            initialize_model_parallel(1)
        torch.set_default_dtype(torch.bfloat16)
        one_by_one, at_once = empty_model(config), empty_model(config)
        torch.set_default_dtype(torch.float32)
    sync_one_by_one(one_by_one, weights)
    at_once.load_weights(weights=weights)
    expected = dict(at_once.named_parameters())
    found = dict(one_by_one.named_parameters())
    return {
        "parameters": len(expected),
        "differ": [name for name in expected if not torch.equal(found[name], expected[name])],
    }


def main() -> None:
    # vLLM would look at each model's class in one more process, which imports everything: CUDA stays out of this one.
    here = mock.patch.object(registry, "_run_in_subprocess", lambda function: function())
    with tempfile.TemporaryDirectory() as folder, here:
        print(json.dumps({name: compared(os.path.join(folder, name), CONFIGS[name]) for name in CONFIGS}))


if __name__ == "__main__":
    main()

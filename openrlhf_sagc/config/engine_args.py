"""What `--vllm.engine_args` may hold: arguments of vLLM's engines that OpenRLHF does not set itself, of vLLM's types."""

import difflib
import json
from typing import Any

from openrlhf_sagc.config.causes import short
from openrlhf_sagc.config.refusal import DRAFTS, refuse

ENGINE_ARGS = "--vllm.engine_args"
# What flags set, what OpenRLHF's placement and weight sync could not follow, and a secret -> what to use instead.
INSTEAD = {
    "model": "--actor.model_name_or_path",
    "dtype": "--ds.param_dtype",
    "seed": "--train.seed",
    "max_model_len": "--data.max_len",
    "tensor_parallel_size": "--vllm.tensor_parallel_size",
    "pipeline_parallel_size": "--vllm.tensor_parallel_size",
    "data_parallel_size": "--vllm.num_engines",
    "enforce_eager": "--vllm.enforce_eager",
    "enable_prefix_caching": "--vllm.enable_prefix_caching",
    "gpu_memory_utilization": "--vllm.gpu_memory_utilization",
    "enable_sleep_mode": "--vllm.enable_sleep",
    "limit_mm_per_prompt": "--data.max_images_per_prompt",
    "logprobs_mode": "--algo.advantage.is_correction_level",
    "max_logprobs": "--algo.advantage.is_correction_level",
    "hf_token": "the environment variable HF_TOKEN, which is not printed",
}
# What a weight sync may break: what it is -> what is known of it. None of them is refused.
AFTER_A_SYNC = {
    "quantization": "weights are quantized anew at each sync, and engines sample by another policy than is trained",
    "kv_cache_dtype": "no sync changes the scales of these keys and values, and engines sample by another policy",
    "speculative_config": "no sync changes the weights that draft, which fit the policy less with every step; "
    "--rollout.drafts siblings needs none",
}
CORRECTED = "--algo.advantage.is_correction_level token corrects for that"
OWN_TEXT = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class")  # speculative_config's methods without weights
FIXED = ("distributed_executor_backend", "trust_remote_code", "worker_extension_cls")  # by no flag


def check_engine_args(given: Any, corrects: bool = False) -> None:
    """End the run with a line on what vLLM's engines would not take. It needs vLLM, whose import takes 9 s.

    What a weight sync may break gets a line, and is taken.

    Args:
        given: what the flag's JSON says.
        corrects: whether the loss is corrected for what the engines sample by.

    Raises:
        SystemExit: the line.
    """
    shown = short(json.dumps(given))
    refuse(not isinstance(given, dict), f'{ENGINE_ARGS} {shown}: use an object such as {{"max_num_seqs": 512}}')
    for name, value in given.items():
        refuse(name in INSTEAD, f"{ENGINE_ARGS} does not take {name}: use {INSTEAD.get(name)}")
        refuse(name in FIXED, f"{ENGINE_ARGS} does not take {name}, which OpenRLHF sets: drop it")
        _check_value(name, value)
    for name, why in AFTER_A_SYNC.items():
        if _may_break(name, given.get(name)):
            advice = "" if corrects or name == "speculative_config" else f"; {CORRECTED}"
            print(
                f"openrlhf_sagc: {ENGINE_ARGS} {name} {short(json.dumps(given[name]))}: {why}{advice} (docs/engines.md)"
            )


def check_drafts(drafts: str, given: Any) -> None:
    """--rollout.drafts brings the `speculative_config` of the engines itself, by which nothing is scheduled ahead.

    Raises:
        SystemExit: --vllm.engine_args has what does not go with it.
    """
    for name in ("speculative_config", "async_scheduling"):
        refuse(
            drafts != "off" and given.get(name),
            f"{DRAFTS} {drafts} does not work with {name} in {ENGINE_ARGS}: drop one of them",
        )


def _may_break(name: str, value: Any) -> bool:
    if name == "speculative_config":
        return bool(value) and not {value.get("method"), value.get("model")} & {*OWN_TEXT}
    return value not in (None, "auto", "bfloat16", "float16")


def _check_value(name: str, value: Any) -> None:
    """Names and types are those of vLLM's own dataclass. What else it asks of a value it says when an engine starts."""
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError
    from vllm import AsyncEngineArgs

    fields = AsyncEngineArgs.__dataclass_fields__
    nearest = difflib.get_close_matches(name, fields, n=1, cutoff=0.0)[0]
    refuse(name not in fields, f"{ENGINE_ARGS} {name} is no argument of vLLM's engines; the closest one is {nearest}")
    try:
        TypeAdapter(fields[name].type).validate_json(json.dumps(value), strict=True)
    except PydanticUserError:  # vLLM's type is none of pydantic's
        return
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join([name, *(str(part) for part in wrong["loc"])])
        refuse(True, f"{ENGINE_ARGS} {where} {short(json.dumps(wrong['input'], default=str))}: {short(wrong['msg'])}")

"""Arguments of vLLM's engines beside OpenRLHF's own: names and types are looked at before Ray starts."""

from unittest import mock

import openrlhf.trainer.ray.vllm_engine as vllm_engine
import pytest
from vllm import AsyncEngineArgs

from openrlhf_sagc.config.engine_args import FIXED, INSTEAD, check_drafts, check_engine_args


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_num_seqs": 512, "max_num_batched_tokens": 16384, "kv_cache_dtype": "fp8", "async_scheduling": False},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}, "max_num_partial_prefills": None},
        {"compilation_config": {"mode": 3, "cudagraph_capture_sizes": [1, 2, 4]}},
        {"lora_dtype": "auto", "quantization_config": {"any": 1}},  # whose types pydantic does not know
    ],
)
def test_what_vllm_takes_is_taken(given, refused):
    given = {name: value for name, value in given.items() if name in AsyncEngineArgs.__dataclass_fields__}
    assert not refused(check_engine_args, given)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([1], '--vllm.engine_args [1]: use an object such as {"max_num_seqs": 512}'),
        ({"max_seqs": 8}, "max_seqs is no argument of vLLM's engines; the closest one is max_num_seqs"),
        ({"agent_func_path": "a.py"}, "agent_func_path is no argument of vLLM's engines"),  # of OpenRLHF's actor
        ({"max_num_seqs": "many"}, '--vllm.engine_args max_num_seqs "many": Input should be a valid integer'),
        ({"kv_cache_dtype": "fp9"}, "--vllm.engine_args kv_cache_dtype \"fp9\": Input should be 'auto'"),
        ({"compilation_config": {"levl": 3}}, "compilation_config.levl 3: Unexpected keyword argument"),
        ({"max_num_seqs": 8, "seed": 1}, "--vllm.engine_args does not take seed: use --train.seed"),
        ({"worker_extension_cls": "a.B"}, "does not take worker_extension_cls, which OpenRLHF sets: drop it"),
        ({"hf_token": "hf_secret"}, "does not take hf_token: use the environment variable HF_TOKEN"),
    ],
)
def test_what_it_does_not_take_is_one_line(given, line, refused):
    said = refused(check_engine_args, given)
    assert line in said and "hf_secret" not in said


def test_all_that_openrlhf_sets_is_refused(monkeypatch):
    """An engine would be made with an argument twice, and Python would say so once Ray has started."""
    actors = mock.MagicMock()
    for name in ("placement_group", "PlacementGroupSchedulingStrategy", "ray"):
        monkeypatch.setattr(vllm_engine, name, mock.MagicMock())
    monkeypatch.setattr(vllm_engine, "RolloutRayActor", actors)
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", mock.MagicMock())
    vllm_engine.create_vllm_engines(
        1, 1, "model", 0, False, False, True, 64, logprobs_mode="processed_logprobs", max_images_per_prompt=1
    )
    keywords, known = set(actors.options.return_value.remote.call_args.kwargs), set(
        AsyncEngineArgs.__dataclass_fields__
    )
    assert len(keywords & known) > 10
    assert keywords & known <= {*INSTEAD, *FIXED} <= known


def test_a_run_has_what_its_flag_says(arguments, refused):
    text = '{"max_num_seqs": 512, "compilation_config": {"mode": 3}}'
    assert arguments("--vllm.engine_args", text).vllm.engine_args == {
        "max_num_seqs": 512,
        "compilation_config": {"mode": 3},
    }
    assert arguments().vllm.engine_args == {}
    assert "use --data.max_len" in refused(arguments, "--vllm.engine_args", '{"max_model_len": 9}')


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"quantization": "fp8"}, 'quantization "fp8": weights are quantized anew at each sync'),
        ({"kv_cache_dtype": "fp8"}, 'kv_cache_dtype "fp8": no sync changes the scales'),
        ({"speculative_config": {"method": "eagle3", "model": "a/b"}}, "no sync changes the weights that draft"),
        ({"speculative_config": {"method": "mtp"}}, 'speculative_config {"method": "mtp"}: no sync'),
        ({"speculative_config": {"method": "ngram"}}, ""),
        ({"speculative_config": {"method": "suffix"}}, ""),
        ({"speculative_config": {"model": "ngram", "num_speculative_tokens": 4}}, ""),
        ({"speculative_config": None}, ""),
        ({"kv_cache_dtype": "auto", "quantization": None, "max_num_seqs": 8}, ""),
        ({"kv_cache_dtype": "bfloat16"}, ""),
    ],
)
def test_what_a_weight_sync_may_break_gets_a_line_and_starts(given, line, refused, capsys):
    assert not refused(check_engine_args, given)
    said = capsys.readouterr().out
    assert bool(line) == bool(said) and line in said and said.count("\n") == bool(line)
    assert ("is_correction_level token" in said) == bool(given.keys() & {"quantization", "kv_cache_dtype"} and line)
    assert not refused(check_engine_args, given, True)
    assert "is_correction_level" not in capsys.readouterr().out


def test_drafts_bring_their_own_speculative_config(refused):
    own = {"speculative_config": {"method": "ngram"}}
    assert not refused(check_drafts, "off", own) and not refused(check_drafts, "siblings", {"max_num_seqs": 8})
    assert not refused(check_drafts, "siblings", {"speculative_config": None, "async_scheduling": False})
    said = refused(check_drafts, "siblings", own)
    assert "--rollout.drafts siblings does not work with speculative_config in --vllm.engine_args: drop one" in said
    assert "with async_scheduling in" in refused(check_drafts, "siblings", {"async_scheduling": True})

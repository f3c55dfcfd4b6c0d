"""Flags of vLLM's engines that follow from the model and the memory."""

import json
import runpy
import subprocess
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from nvidia_smi import write_nvidia_smi
from studies.recipes.run import CONFIGS

SCRIPT = ROOT / "train_scripts/engine_flags.py"
SMALL = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=112, vocab_size=1000)


@pytest.fixture(scope="module")
def module():
    model = runpy.run_path(str(ROOT / "train_scripts/model_config.py"))
    return SimpleNamespace(**model | runpy.run_path(str(SCRIPT)))


@pytest.fixture
def flags_for(module, monkeypatch, tmp_path, capsys):
    """flags_for(config, *flags, start=MODULE, card=MIB, visible=GPUS, device=DEVICE) -> the words, and what was said of them."""

    def run(config, *flags, start="openrlhf_sagc", card=80e9 / 2**20, visible="0,1", device="cpu"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model/config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        if card:
            large = 4 * card if isinstance(card, (int, float)) else card
            write_nvidia_smi(tmp_path, (1, large), (2, card), (0, 1000))
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("DEVICE", device)  # for a CPU no sums of a GPU are printed
        usual = ["--actor.model_name_or_path", tmp_path / "model", "--data.max_len", "22528"]
        usual += ["--vllm.gpu_memory_utilization", "0.8", *flags]
        words = [*module.engine_flags(start, module.settings_of([*map(str, usual)]))]
        return words, capsys.readouterr().err

    return run


@pytest.mark.parametrize("heads, tie", [(4, False), (2, True), (1, False)])
def test_weights_are_those_of_the_model(module, heads, tie):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = SMALL | {"num_key_value_heads": heads, "tie_word_embeddings": tie}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    assert module.weights_of(sizes) == matrices


def test_a_token_takes_its_keys_and_values(module):
    assert module.bytes_a_token(CONFIGS["Qwen2.5-7B"], 1) == 56 * 1024
    assert module.bytes_a_token(CONFIGS["Qwen2.5-7B"], 2) == 28 * 1024
    assert module.bytes_a_token(CONFIGS["Qwen2.5-7B"], 8) == 14 * 1024  # a head is on two GPUs
    assert module.bytes_a_token(SMALL | {"head_dim": 32}, 1) == 4 * 3 * 32 * 4


@pytest.mark.parametrize(
    ("flags", "card", "slots"),
    [
        (["--vllm.tensor_parallel_size", "2"], 81559, 512),
        ([], 81559, 288),
        ([], None, 256),  # no GPU is seen here: 80 GB
        ([], "[N/A]", 256),  # as in MIG mode
        (["--vllm.gpu_memory_utilization", "0.5"], 81559, 128),
        (["--data.max_len", "10240"], 81559, 512),  # for more there are no graphs
        (["--data.max_len=131072"], 81559, 48),
        (["--vllm.gpu_memory_utilization", "0.7"], 32768, 16),
    ],
)
def test_slots_follow_the_memory(flags_for, flags, card, slots):
    """The last flags count, and the smallest of the GPUs that are visible: the third one has 1 GB."""
    words, said = flags_for(CONFIGS["Qwen2.5-7B"], *flags, card=card)
    assert words[0] == "--vllm.engine_args" and len(words) == 2
    assert json.loads(words[1]) == {"max_num_seqs": slots, "max_num_batched_tokens": 8192}
    assert f"an engine decodes {slots} rollouts at a time" in said


@pytest.mark.parametrize(("visible", "slots"), [("0", 512), ("1,0", 288), ("-1", 256), ("", 256)])
def test_only_visible_gpus_count(flags_for, visible, slots):
    words, _ = flags_for(CONFIGS["Qwen2.5-7B"], card=81559, visible=visible)
    assert json.loads(words[1])["max_num_seqs"] == slots


@pytest.mark.parametrize(
    ("config", "flags", "why"),
    [
        ("{", [], "its config.json cannot be read (JSONDecodeError)"),
        ("[]", [], "its config.json holds no JSON object"),
        (SMALL | {"num_hidden_layers": "28"}, [], "its config.json has no num_hidden_layers"),
        (SMALL | {"vocab_size": True}, [], "its config.json has no vocab_size"),
        (SMALL | {"num_experts": 8}, [], "it is no dense model"),
        (SMALL | {"kv_lora_rank": 512}, [], "it is no dense model"),
        (CONFIGS["Qwen2.5-32B"], [], "64 GB of each GPU do not hold its weights, 66, and 5 to work"),
        (CONFIGS["Qwen2.5-7B"], ["--data.max_len", "1000000"], "is too small for rollouts of 1,000,000"),
        (CONFIGS["Qwen2.5-7B"], ["--data.max_len", "many"], "invalid literal"),
        (CONFIGS["Qwen2.5-7B"], ["--data.max_len", "0"], "by zero"),
        (CONFIGS["Qwen2.5-7B"], ["--vllm.gpu_memory_utilization", "inf"], "infinity"),
    ],
)
def test_where_the_sum_is_not_known_vllm_keeps_its_default(flags_for, config, flags, why):
    words, said = flags_for(config, *flags)
    assert not words and why in said and "an engine decodes 128 rollouts at a time" in said and said.count("\n") == 1


def test_what_the_user_gives_stays(flags_for):
    assert flags_for(CONFIGS["Qwen2.5-7B"], "--vllm.engine_args", "{}") == ([], "")
    words, said = flags_for(CONFIGS["Qwen2.5-7B"], start="openrlhf_sagc.unpatched")
    assert not words and "OpenRLHF as released has no flag for more" in said
    assert flags_for(CONFIGS["Qwen2.5-7B"], start="openrlhf_sagc.off")[0]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"text_config": SMALL | {"linear_num_key_heads": 16}}, "linear_num_key_heads"),
    ],
)
def test_graphs_are_off_where_layers_keep_a_state(flags_for, more, named):
    words, said = flags_for(SMALL | more)
    assert words == ["--vllm.enforce_eager"] and f"layers without a KV cache ({named})" in said
    assert "the sum knows nothing of its states" in said
    assert flags_for(SMALL | more, "--vllm.enforce_eager")[0] == []
    words, said = flags_for(SMALL | more, "--vllm.engine_args", "{}")
    assert words == ["--vllm.enforce_eager"] and said.count("\n") == 1
    assert flags_for(SMALL | more, start="openrlhf_sagc.unpatched")[0] == ["--vllm.enforce_eager"]


@pytest.mark.parametrize("kinds", [["sliding_attention", "full_attention"], None, []])
def test_other_attention_keeps_its_graphs(flags_for, kinds):
    assert flags_for(SMALL | {"layer_types": kinds, "linear_bias": False})[0][0] == "--vllm.engine_args"


TRAINING = ["--train.dynamic_batch_enable", "--ds.zero_stage", "3", "--train.colocate_all", "--ds.enable_sleep"]
TRAINING += ["--actor.gradient_checkpointing_enable", "--train.max_tokens_per_gpu", "22528"]


def test_the_sums_are_said_before_the_start(flags_for):
    """Of training, of engines and of the sync, also where engines keep their settings; and what would fit."""
    model, at_once = CONFIGS["Qwen2.5-7B"], ["--vllm.engine_args", "{}", *TRAINING]
    _, said = flags_for(model, *at_once, device="gpu")
    training, engines = said.splitlines()
    assert "a GPU in training: 64 = 15 states + 34 logits of 10 bytes" in training
    assert "while engines generate: 69 = 15 weights" in engines and engines.endswith("in the sync of weights: 25")
    _, said = flags_for(model, *at_once, device="gpu", card=60000)
    assert "takes 64 GB of the card's 63 in training, and may fail there: MAX_LEN=21504" in said.splitlines()[1]
    _, said = flags_for(model, *at_once, "--ds.lora.rank", "8", device="gpu")
    assert said.endswith("memory of a GPU is not predicted: the sums know nothing of --ds.lora.rank 8\n")


def test_no_secret_of_an_address_is_printed(flags_for):
    given = ["--actor.model_name_or_path", "https://user:s3cret@host/model"]
    words, said = flags_for(SMALL, *given)
    assert not words and "its config.json cannot be read" in said and "***: " in said and "s3cret" not in said


def test_the_command_prints_a_word_a_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    words = ["--actor.model_name_or_path", tmp_path, "--data.max_len", "10", "--vllm.gpu_memory_utilization", "0.5"]
    ran = subprocess.run(["python3", SCRIPT, "openrlhf_sagc", *words], capture_output=True, text=True, check=True)
    name, text = ran.stdout.splitlines()
    assert name == "--vllm.engine_args" and json.loads(text)["max_num_seqs"] == 512

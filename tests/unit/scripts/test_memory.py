"""Sums of memory, what is refused for them, and where the recipes' stand."""

import json
import re
import runpy
from types import SimpleNamespace

import pytest
from cpu_stack import ROOT
from launched import SCRIPTS, pairs
from nvidia_smi import write_nvidia_smi

RECIPES = SimpleNamespace(**runpy.run_path(str(SCRIPTS / "recipe_memory.py")))
MEMORY = SimpleNamespace(**runpy.run_path(str(SCRIPTS / "memory.py")))
PROBLEMS = SimpleNamespace(**runpy.run_path(str(SCRIPTS / "memory_problems.py")))
SEVEN = RECIPES.CONFIGS["Qwen2.5-7B"]
H100 = 85.5  # GB of a card of 80 as nvidia-smi has it


@pytest.fixture
def settings_of(tmp_path):
    """settings_of(config, *flags): those of a command whose model is in a folder."""

    def run(config, *flags):
        (tmp_path / "config.json").write_text(json.dumps(config))
        usual = ["--train.dynamic_batch_enable", "--ds.zero_stage", "3", "--train.colocate_all", "--ds.enable_sleep"]
        usual += ["--actor.gradient_checkpointing_enable", "--actor.num_gpus_per_node", "8", "--data.max_len", "22528"]
        usual += [
            "--rollout.max_new_tokens",
            "20480",
            "--vllm.gpu_memory_utilization",
            "0.8",
            "--vllm.tensor_parallel_size",
        ]
        words = ["--actor.model_name_or_path", str(tmp_path), *usual, "2", *map(str, flags)]
        return runpy.run_path(str(SCRIPTS / "flag_words.py"))["settings_of"](words)

    return run


def lines(settings, card=H100, module="openrlhf_sagc"):
    return list(PROBLEMS.memory_problems(module, settings, card))


# --- the sums --------------------------------------------------------------------------------------------------------


def test_training_is_what_the_parts_of_the_7b_recipe_are():
    parts = MEMORY.training_parts(SEVEN, RECIPES.RECIPES["dapo_qwen2.5_7b.sh"][1])
    weights = 28 * (2 * 3584 * (3584 + 512) + 3 * 3584 * 18944) + 2 * 152064 * 3584
    assert parts.pop("states") == pytest.approx(16 * weights / 8e9)
    assert parts.pop("logits of 10 bytes") == pytest.approx(10 * 152064 * 22528 / 1e9)
    assert parts.pop("activation checkpoints") == pytest.approx((2 * 28 + 8) * 3584 * 22528 / 1e9)
    assert parts.pop("ZeRO's buffers") == pytest.approx(2 * 1.5)
    assert set(parts) == MEMORY.GUESSED - {"ZeRO's buffers"}


def test_a_layer_counts_where_it_takes_more_than_the_loss():
    """As of a small vocabulary; the loss's logits are still held."""
    config, sizes = SEVEN | {"vocab_size": 8000}, MEMORY.Sizes(tokens=10000, longest=10000, gpus=8)
    parts = MEMORY.training_parts(config, sizes)
    layer = 14 * 18944 + 18 * 3584 + 4 * (3584 + 512)
    assert parts["logits and a layer at work"] == pytest.approx((4 * 8000 + layer) * 10000 / 1e9)
    whole = MEMORY.training_parts(config, sizes._replace(checkpoints=False))
    kept = 8 * 18944 + 16 * 3584 + 4 * (3584 + 512)
    assert whole["activations"] == pytest.approx((28 * kept + 8 * 3584) * 10000 / 1e9)


def test_engines_have_their_share_and_actors_that_stay_their_states():
    sizes = MEMORY.Sizes(tokens=1024, longest=1024, gpus=8, ranks=2)
    weights = MEMORY.weights_of(SEVEN) / 1e9
    total = MEMORY.total
    assert total(MEMORY.generation_parts(SEVEN, sizes, 80)) == pytest.approx(64 + 2 * weights / 8 + 3)
    awake = sizes._replace(sleeps=False)
    assert total(MEMORY.generation_parts(SEVEN, awake, 80)) == pytest.approx(64 + 16 * weights / 8 + 3)
    apart = sizes._replace(colocated=False)
    assert total(MEMORY.generation_parts(SEVEN, apart, 80)) == pytest.approx(64)
    sync = weights + 4 * 152064 * 3584 / 1e9 + 2 * weights / 8 + 6
    assert total(MEMORY.sync_parts(SEVEN, sizes)) == pytest.approx(sync)


@pytest.mark.parametrize(
    ("module", "flags", "logit_bytes"),
    [
        ("openrlhf_sagc", [], 10),
        ("openrlhf_sagc.off", [], 10),
        ("openrlhf_sagc.unpatched", [], 16),
        ("openrlhf_sagc", ["--actor.entropy_coef", "0"], 16),
    ],
)
def test_bytes_of_a_logit(settings_of, module, flags, logit_bytes):
    sizes = MEMORY.sizes_of(module, settings_of(SEVEN, *flags))
    assert sizes == MEMORY.Sizes(22528, 22528, 8, ranks=2, logit_bytes=logit_bytes)


@pytest.mark.parametrize(
    "flags",
    [["--ds.zero_stage", "2"], ["--ds.adam_offload"], ["--ds.lora.rank", "8"], ["--ds.ring_attn_size", "2"]],
)
def test_what_the_sums_know_nothing_of_is_named_and_not_refused(settings_of, flags):
    settings = settings_of(SEVEN, "--train.max_tokens_per_gpu", 10**6, *flags)
    with pytest.raises(ValueError, match=f"know nothing of {' '.join(flags)}"):
        MEMORY.sizes_of("openrlhf_sagc", settings)
    assert not lines(settings)
    del settings["--train.dynamic_batch_enable"]
    assert not lines(settings)


def test_the_gpus_of_an_engine_share_the_heads(settings_of):
    look = lambda *flags: list(PROBLEMS.head_problems(settings_of(SEVEN, *flags)))  # noqa: E731
    (said,) = look("--vllm.tensor_parallel_size", "8", "--vllm.num_engines", "1")
    assert said == (
        "--vllm.tensor_parallel_size 8 does not divide the 28 attention heads of the model: use --vllm.tensor_parallel_size 4 "
        "--vllm.num_engines 2"
    )
    assert not look(*said.rpartition("use ")[2].split()) and not look()
    assert not list(PROBLEMS.head_problems({"--actor.model_name_or_path": ["no/model"]}))


# --- refusals --------------------------------------------------------------------------------------------------------


def changed(settings, advice):
    """With the variables of launch.sh that an advice names."""
    given = dict(word.split("=") for word in advice.split(", or ")[0].split())
    names = {"TOKENS_PER_GPU": "--train.max_tokens_per_gpu", "GPU_MEMORY": "--vllm.gpu_memory_utilization"}
    names |= {"TENSOR_PARALLEL": "--vllm.tensor_parallel_size", "ENGINES": "--vllm.num_engines"}
    made = settings | {names[name]: [word] for name, word in given.items() if name in names}
    if word := given.get("MAX_NEW_TOKENS"):
        made |= {"--rollout.max_new_tokens": [word], "--data.max_len": [str(int(word) + 2048)]}
    return made | ({"--data.max_len": [given["MAX_LEN"]]} if "MAX_LEN" in given else {})


@pytest.mark.parametrize(
    ("config", "flags", "card", "said"),
    [
        (SEVEN, ["--train.max_tokens_per_gpu", 45056], H100, "--train.max_tokens_per_gpu 45056 takes 103 GB of"),
        (SEVEN, [], 48, "--data.max_len 22528 takes 64 GB of the card's 48 in training: MAX_NEW_TOKENS="),
        (RECIPES.CONFIGS["Qwen2.5-32B"], [], 96, "or 16 GPUs that train"),
        (SEVEN, ["--vllm.gpu_memory_utilization", 0.99], 80, "takes 81 GB of the card's 80 while"),
        (
            RECIPES.CONFIGS["Qwen2.5-32B"],
            ["--vllm.tensor_parallel_size", 1, "--data.max_len", 2048],
            80,
            "TENSOR_PARALLEL=",
        ),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_what_fits(settings_of, config, flags, card, said):
    """What it names fits with all that is guessed too."""
    settings = settings_of(config, *flags)
    refused = lines(settings, card)
    assert any(said in line for line in refused), refused
    for line in refused:
        assert "\n" not in line and line.startswith("--")
    for line in refused:
        settings = changed(settings, line.split(": ")[1])
    assert not lines(settings, card)
    sizes = MEMORY.sizes_of("openrlhf_sagc", settings)
    if any("training" in line for line in refused):
        assert MEMORY.total(MEMORY.training_parts(config, sizes)) <= card
    assert PROBLEMS.engines_fit(config, sizes, card)


def test_more_gpus_that_are_named_fit(settings_of):
    (line,) = lines(
        settings_of(SEVEN, "--actor.num_gpus_per_node", 1, "--vllm.tensor_parallel_size", 1, "--data.max_len", 2048)
    )[:1]
    gpus = int(re.search(r"(\d+) GPUs that train", line)[1])
    sizes = MEMORY.Sizes(16192, 2048, gpus)
    assert MEMORY.total(MEMORY.training_parts(SEVEN, sizes)) <= H100
    assert MEMORY.total(MEMORY.training_parts(SEVEN, sizes._replace(gpus=gpus // 2))) > H100


def test_what_exceeds_the_card_only_by_a_guess_starts(settings_of):
    """OpenRLHF as released without flash-attn: 84 GB, of which 9 are guessed."""
    settings = settings_of(SEVEN)
    assert not lines(settings, 80, "openrlhf_sagc.unpatched")
    assert lines(settings, 74, "openrlhf_sagc.unpatched")
    assert not lines(settings, None, "openrlhf_sagc.unpatched")  # no GPU is seen
    assert not lines(settings | {"--actor.model_name_or_path": ["/none"]}, 1)


def test_preflight_asks_for_the_smallest_gpu(preflight, settings_of, monkeypatch, tmp_path):
    settings = settings_of(SEVEN)
    flags = [word for flag, values in settings.items() for word in (flag, *values)]
    options = dict(ports=[], command=["openrlhf_sagc", *flags], disk_gb=0, memory_gb=0, cluster=None)
    options = SimpleNamespace(device="gpu", isolated_network=True, **options)
    write_nvidia_smi(tmp_path, (1, 81559), (1, 46068))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [line for line in preflight.known_problems(options) if "of the card's" in line]
    assert [line[:40] for line in found] == ["--data.max_len 22528 takes 64 GB of the "] and "card's 48" in found[0]
    options.cluster = "http://head:8265"  # whose nodes have other GPUs
    assert not [line for line in preflight.known_problems(options) if "of the card's" in line]


# --- the recipes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", RECIPES.RECIPES)
def test_recipes_are_those_of_the_scripts_and_fit_80_gb(flags_of, script):
    settings = {pair[0]: list(pair[1:]) for pair in pairs(flags_of(script))}
    model, sizes = RECIPES.RECIPES[script]
    assert sizes == MEMORY.sizes_of("openrlhf_sagc", settings)
    assert settings["--actor.model_name_or_path"][0].removesuffix("-Instruct") == f"Qwen/{model}"
    config = RECIPES.CONFIGS[model]
    assert MEMORY.total(MEMORY.training_parts(config, sizes)) <= MEMORY.CARD_GB
    assert PROBLEMS.engines_fit(config, sizes, MEMORY.CARD_GB)
    head = (SCRIPTS / script).read_text()
    assert RECIPES.first_lines(script) in head, "run .venv/bin/python train_scripts/recipe_memory.py --write"


def test_the_32b_recipe_fits_with_the_papers_length(flags_of):
    """As its first lines say."""
    flags = flags_of("dapo_qwen2.5_32b_multinode.sh", MAX_NEW_TOKENS="20480")
    sizes = MEMORY.sizes_of("openrlhf_sagc", {pair[0]: list(pair[1:]) for pair in pairs(flags)})
    assert sizes.tokens == 22528
    config = RECIPES.CONFIGS["Qwen2.5-32B"]
    assert MEMORY.total(MEMORY.training_parts(config, sizes)) <= MEMORY.CARD_GB
    assert PROBLEMS.engines_fit(config, sizes, MEMORY.CARD_GB)


def test_the_table_is_that_of_the_page():
    page = (ROOT / "docs/launch_scripts.md").read_text()
    is_current = f"<!-- memory -->\n{RECIPES.table()}<!-- /memory -->\n" in page
    assert is_current, "run .venv/bin/python train_scripts/recipe_memory.py --write"
    assert len(RECIPES.RECIPES) == 5 and RECIPES.CARDS == (80, 96, 141)


@pytest.mark.parametrize("script", RECIPES.RECIPES)
@pytest.mark.parametrize("card", RECIPES.CARDS)
def test_the_most_tokens_fit_and_no_more(script, card):
    model, sizes = RECIPES.RECIPES[script]
    most = PROBLEMS.most_tokens(RECIPES.CONFIGS[model], sizes, card)
    taken = [
        MEMORY.total(MEMORY.training_parts(RECIPES.CONFIGS[model], sizes._replace(tokens=tokens)))
        for tokens in (most, most + PROBLEMS.STEP)
    ]
    assert taken[0] <= card < taken[1] and most >= sizes.longest

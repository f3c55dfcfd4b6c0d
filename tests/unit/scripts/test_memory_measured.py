"""What train_scripts/memory.py counts, measured by the events of the CPU allocator on small models and on OpenRLHF's own loss."""

import runpy
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import transformers
from cpu_stack import ROOT
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from flash_loss import FlashCrossEntropy
from lib.allocated import allocated

MEMORY = SimpleNamespace(**runpy.run_path(str(ROOT / "train_scripts/memory.py")))
TOKENS, WORDS = 2048, 1024  # of the loss
SIZES = [  # hidden, intermediate, heads, their size, key heads
    (64, 256, 4, 16, 4),
    (64, 512, 8, 16, 2),
    (128, 256, 4, 64, 1),
]


def model_of(sizes, kind="Qwen2", layers=3, attention="sdpa", **more):
    """A model with random bfloat16 weights, in training, and its config as config.json has it."""
    hidden, intermediate, heads, head, keys = sizes
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        num_hidden_layers=layers,
        vocab_size=64,
        **{
            "tie_word_embeddings": False,
            "use_cache": False,
            "head_dim": head,
            "attn_implementation": attention,
            **more,
        },
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16)
    return model.train(), config.to_dict()


def bytes_a_token_of(model, tokens=TOKENS, checkpoints=True):
    """That the model holds for its backward pass, and at the peak of that, without logits and weights' gradients."""
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    words, places = torch.randint(0, 64, (1, tokens)), torch.arange(tokens)[None]
    _, held, logits = allocated(lambda: model(words, position_ids=places).logits)
    gradient = torch.ones_like(logits)
    peak, _, _ = allocated(lambda: logits.backward(gradient))
    own = logits.nbytes
    return (held - own) / tokens, (held + peak - own) / tokens


@pytest.mark.parametrize("kind, tied", [("Qwen2", True), ("Qwen2", False), ("Llama", False), ("Qwen3", True)])
def test_weights_are_the_models_but_for_norms_and_biases(kind, tied):
    model, config = model_of(SIZES[1], kind, tie_word_embeddings=tied)
    assert MEMORY.weights_of(config) == sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)


@pytest.mark.parametrize("kind", ["Qwen2", "Llama"])
@pytest.mark.parametrize("sizes", SIZES)
def test_checkpoints_are_the_layers_inputs_and_one_layer_works(sizes, kind):
    """The positions and their sines and cosines, 8 bytes and 4 for each number of a head, are left out of the sums."""
    model, config = model_of(sizes, kind)
    held, peak = bytes_a_token_of(model)
    positions = 4 * sizes[3] + 32
    expected = 2 * 3 * sizes[0] + 8 * sizes[0]
    assert expected <= held <= expected + positions
    work = 2 * 3 * sizes[0] + MEMORY.kept_a_token(config) + 6 * sizes[1] + 2 * sizes[0]
    early = 2 * sizes[1]  # what the layer's last matrix took is free by then on some CPUs, as on one without bfloat16
    assert work - early <= peak <= 1.02 * work + positions


@pytest.mark.parametrize("sizes", SIZES)
def test_without_checkpoints_every_layer_keeps_what_it_multiplies_by(sizes):
    """And fp32 numbers that the sums leave out: one of each norm, and one of each head."""
    held = [bytes_a_token_of(model_of(sizes, layers=layers)[0], checkpoints=False)[0] for layers in (2, 4)]
    expected = MEMORY.kept_a_token(model_of(sizes)[1]) + 4 * (2 + sizes[2])
    assert held[1] - held[0] == pytest.approx(2 * expected, abs=1)


def test_eager_attention_adds_the_square_of_the_tokens():
    """12 bytes for each head and pair of tokens; sdpa, which has a kernel for the CPU, nothing that grows so."""
    tokens = 1024
    _, sdpa = bytes_a_token_of(model_of(SIZES[0])[0], tokens)
    _, twice = bytes_a_token_of(model_of(SIZES[0])[0], 2 * tokens)
    _, eager = bytes_a_token_of(model_of(SIZES[0], attention="eager")[0], tokens)
    assert twice == pytest.approx(sdpa, rel=0.03)
    assert eager - sdpa == pytest.approx(12 * 4 * tokens, rel=0.1)


# --- the loss ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def loss_of():
    """loss_of(tree): openrlhf/models/utils.py of build/TREE, which imports nothing of its package."""

    def read(tree):
        return SimpleNamespace(**runpy.run_path(str(ROOT / "build" / tree / "openrlhf/models/utils.py")))

    return read


@pytest.fixture
def flash_attention(monkeypatch):
    name = "flash_attn.ops.triton.cross_entropy"
    for part in ("flash_attn", "flash_attn.ops", "flash_attn.ops.triton", name):
        monkeypatch.setitem(sys.modules, part, ModuleType(part))
    sys.modules[name].cross_entropy_loss = lambda logits, labels: (FlashCrossEntropy.apply(logits, labels),)


def bytes_a_logit(utils, entropy=False):
    """At the peak of the loss, as OpenRLHF's Actor and training step have it; `output` holds the logits."""
    weight = torch.nn.Parameter(torch.randn(WORDS, 8, dtype=torch.bfloat16))
    hidden = torch.randn(1, TOKENS, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, WORDS, (1, TOKENS))

    def train():
        output = {"logits": torch.nn.functional.linear(hidden, weight)}
        output["logits"] = output["logits"].to(torch.float32)
        loss = utils.compute_entropy(output["logits"])[:, :-1].sum() if entropy else 0
        loss = loss - (utils.log_probs_from_logits(output["logits"], labels)[:, :-1] * 0.3).sum()
        loss.backward()

    return allocated(train)[0] / (TOKENS * WORDS)


def test_logits_of_the_patched_openrlhf(loss_of):
    assert 6 < bytes_a_logit(loss_of("patched")) <= MEMORY.LOGIT_BYTES + 0.1


@pytest.mark.parametrize("tree", ["base", "patched"])
def test_logits_with_flash_attention(loss_of, flash_attention, tree):
    assert bytes_a_logit(loss_of(tree)) == pytest.approx(MEMORY.LOGIT_BYTES, abs=0.1)


def test_logits_of_openrlhf_as_released(loss_of):
    assert bytes_a_logit(loss_of("base")) == pytest.approx(MEMORY.RELEASED_LOGIT_BYTES, abs=0.1)


def test_deepspeed_gathers_by_its_defaults(loss_of):
    """As OpenRLHF's "auto" leaves them."""
    config = DeepSpeedZeroConfig(max_live_parameters="auto", reduce_bucket_size="auto", stage=3)
    assert (config.max_live_parameters, config.reduce_bucket_size) == (MEMORY.LIVE, MEMORY.BUCKET)

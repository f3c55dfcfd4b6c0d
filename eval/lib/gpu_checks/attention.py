"""Check 2: the launch scripts' attention on packed samples, forward and backward."""

import importlib.util
import sys

from lib.gpu_checks.outcomes import FAIL, NotHere, Outcome, measured
from lib.gpu_checks.processes import ROOT

MOST = 2.0  # times the error of sdpa in the same type
LENGTHS = (193, 320)  # tokens of two samples in a pack


def check(node) -> Outcome:
    """The error of a pack's gradient against sdpa in float32 on each sample, over that of sdpa in bfloat16."""
    if importlib.util.find_spec("transformers") is None:
        raise NotHere("transformers is not installed: bash install.sh")
    if node.dry_run:
        return compare("eager", "cpu", "transformers' eager attention stands in for the kernel")
    sys.path.insert(0, str(ROOT / "train_scripts"))
    from attention import RECIPES, why_not

    if wrong := why_not(RECIPES):
        return Outcome(FAIL, reason=wrong)
    return compare(RECIPES, "cuda", RECIPES)


def compare(implementation: str, device: str, said: str) -> Outcome:
    import torch

    tokens_T = torch.randint(VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0)).to(device)
    samples = tokens_T.split(LENGTHS)
    exact = gradient(_model("sdpa", torch.float32, device), samples)
    apart = gradient(_model("sdpa", torch.bfloat16, device), samples)
    packed = gradient(_model(implementation, torch.bfloat16, device), samples, packed=True)
    rounding = (apart - exact).norm() / exact.norm()
    error = (packed - exact).norm() / exact.norm()
    return measured(
        (error / rounding).item(),
        "times sdpa's error",
        most=MOST,
        reason=said,
        error=error.item(),
        sdpa=rounding.item(),
    )


VOCABULARY = 512


def _model(implementation: str, dtype, device: str):
    """A random model with grouped queries, the same whatever the type."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, use_cache=False, initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    weights = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).state_dict()
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=dtype)
    model.load_state_dict(weights)
    return model.to(device)


def gradient(model, samples, packed: bool = False):
    """All of it in a float32 vector, of the sum of the tokens' log-probabilities; a pack is as OpenRLHF gives it."""
    import torch

    packs = [samples] if packed else [(sample,) for sample in samples]
    for pack in packs:
        tokens_T = torch.cat(pack)
        positions_T = torch.cat([torch.arange(len(sample), device=tokens_T.device) for sample in pack])
        logits_TV = model(tokens_T[None], attention_mask=None, position_ids=positions_T[None]).logits[0].float()
        picked_T = logits_TV.log_softmax(-1)[:-1].gather(1, tokens_T[1:, None])[:, 0]
        (picked_T * (positions_T[1:] > 0)).sum().backward()  # not from one sample to the next
    return torch.cat([weight.grad.float().flatten() for weight in model.parameters()])

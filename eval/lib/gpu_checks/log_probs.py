"""Check 4: the memory of a full pack's log-probabilities, forward and backward, and their values."""

import importlib.util
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path

from lib.gpu_checks.figures import SCRIPT, of_script
from lib.gpu_checks.outcomes import FAIL, NotHere, Outcome, measured
from lib.gpu_checks.processes import ROOT

SLACK = 1.05  # of the script's figure: gradients of the head and what is small
HIDDEN = 16  # of the states before the head, whose own memory is not what is asked
EXACT = (2100, 300)  # tokens and words of the comparison with float64: more than two slices
ROUNDING = 1e-5


def check(node) -> Outcome:
    """Bytes a logit at the peak, as OpenRLHF's actor makes logits and log-probabilities; with entropy besides."""
    config, sizes = of_script()
    module = _functions()
    log_probs, entropy = module["log_probs_from_logits"], module["compute_entropy"]
    if not (error := difference(log_probs, node.device)) <= ROUNDING:
        return Outcome(FAIL, error, "of the gradient, against float64", f"<= {ROUNDING:g}")
    words = 512 if node.dry_run else config["vocab_size"]
    found = bytes_a_logit(log_probs, None, node.device, sizes.tokens, words)
    with_entropy = bytes_a_logit(log_probs, entropy, node.device, sizes.tokens, words)
    reason = (
        f"{sizes.tokens:,} tokens x {words:,}, {SCRIPT} counts {sizes.logit_bytes}; with entropy {with_entropy:.1f}"
    )
    return measured(
        found,
        "bytes a logit",
        most=SLACK * sizes.logit_bytes,
        reason=reason,
        with_entropy=with_entropy,
        difference=error,
    )


def _functions() -> dict[str, Callable]:
    """Those of the patched OpenRLHF, by their file: its package imports the whole stack.

    Raises:
        NotHere: there is none.
    """
    places = [ROOT / "build/patched"]
    if package := importlib.util.find_spec("openrlhf_sagc"):
        places.append(Path(package.origin or "").parent / "trees/patched")
    for place in places:
        if (file := place / "openrlhf/models/utils.py").exists():
            if importlib.util.find_spec("deepspeed") is None:
                sys.modules["deepspeed"] = types.ModuleType("deepspeed")  # the file imports it, for other functions
            return runpy.run_path(str(file))
    raise NotHere("the patched OpenRLHF is not here: bash install.sh, or bash patches/build.sh")


def _step(log_probs: Callable, entropy: Callable | None, hidden, head, labels) -> None:
    """Forward and backward as in OpenRLHF's Actor and its loss."""
    import torch

    logits = torch.nn.functional.linear(hidden, head)
    logits = logits.to(torch.float32)
    loss = entropy(logits)[:, :-1].sum() if entropy else 0.0
    loss = loss - 0.3 * log_probs(logits, labels)[:, :-1].sum()
    loss.backward()


def bytes_a_logit(log_probs: Callable, entropy: Callable | None, device: str, tokens: int, words: int) -> float:
    """The peak of what a step allocates, over the logits."""
    import torch

    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, tokens, HIDDEN, generator=generator).to(device, torch.bfloat16).requires_grad_()
    head = torch.nn.Parameter(torch.randn(words, HIDDEN, generator=generator).to(device, torch.bfloat16))
    labels = torch.randint(words, (1, tokens), generator=generator).to(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _step(log_probs, entropy, hidden, head, labels)
        return (torch.cuda.max_memory_allocated() - before) / (tokens * words)
    from lib.allocated import allocated

    return allocated(lambda: _step(log_probs, entropy, hidden, head, labels))[0] / (tokens * words)


def difference(log_probs: Callable, device: str) -> float:
    """The greater of two relative differences from float64: of the log-probabilities, and of their gradient."""
    import torch

    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(1, *EXACT, generator=generator)).to(device).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    labels = torch.randint(EXACT[1], (1, EXACT[0]), generator=generator).to(device)
    weights = torch.randn(1, EXACT[0], generator=generator).to(device)
    found, expected = log_probs(logits, labels), exact.log_softmax(-1).gather(2, labels[..., None])[..., 0]
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs = ((found, expected), (logits.grad, exact.grad))
    return max(((one - other).norm() / other.norm()).item() for one, other in pairs)

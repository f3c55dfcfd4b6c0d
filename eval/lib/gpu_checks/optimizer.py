"""Check 3: DeepSpeed's fused Adam, which is compiled at the first start, against torch's."""

import importlib.util
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from lib.gpu_checks.outcomes import FAIL, NotHere, Outcome, measured
from lib.gpu_checks.processes import ROOT

MOST = 1e-3  # of a step's largest update
STEPS, RATE = 3, 1e-3


def check(node) -> Outcome:
    """The optimizer in two new processes, one after the other: the second one is to load what the first has compiled."""
    if importlib.util.find_spec("deepspeed") is None:
        raise NotHere("deepspeed is not installed: bash install.sh")
    if not node.dry_run:
        sys.path.insert(0, str(ROOT / "train_scripts"))
        from toolchain import toolchain_of

        if notes := toolchain_of({})[2]:
            raise NotHere("; ".join(notes))
    differences, builds = zip(*[_in_a_new_process(node.device) for _ in range(2)])
    if builds[0] != builds[1]:
        return Outcome(FAIL, reason="the second start has compiled the optimizer again: see TORCH_EXTENSIONS_DIR")
    name = "its op for CPUs" if node.dry_run else ""
    return measured(max(differences), "of an update, against torch.optim.AdamW", most=MOST, reason=name)


def _in_a_new_process(device: str) -> tuple[float, int]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(difference, device).result()


def difference(device: str) -> tuple[float, int]:
    """Of the weights after some steps, over the rate, which is an update at most; when the op was built, in ns."""
    import torch
    from deepspeed.ops.adam import FusedAdam
    from deepspeed.ops.op_builder import FusedAdamBuilder

    generator = torch.Generator().manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(weights.clone().to(device))] for weights in [torch.ones(4096)] * 2)
    settings = {"lr": RATE, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.01}
    optimizers = FusedAdam(ours, **settings), torch.optim.AdamW(theirs, **settings)
    for _ in range(STEPS):
        gradient = torch.randn(4096, generator=generator).to(device)
        for (weights,), optimizer in zip((ours, theirs), optimizers):
            weights.grad = gradient.clone()
            optimizer.step()
    built = os.stat(FusedAdamBuilder().load(verbose=False).__file__).st_mtime_ns
    return ((ours[0] - theirs[0]).abs().max() / RATE).item(), built

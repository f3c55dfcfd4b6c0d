"""Check 1: the driver with PyTorch, and what compiles DeepSpeed's and Triton's code."""

import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from lib.gpu_checks.outcomes import FAIL, NotHere, Outcome, measured
from lib.gpu_checks.processes import ROOT


def driver(node) -> Outcome:
    """GPUs that PyTorch sees and computes on."""
    import torch

    if node.dry_run:
        raise NotHere("a dry run takes the CPU")
    if not torch.cuda.is_available():
        return Outcome(FAIL, 0, "GPUs", ">= 1", "PyTorch sees no GPU here: --dry-run tries the script on a CPU")
    sys.path.insert(0, str(ROOT / "train_scripts"))
    from gpus import driver_problems

    cards = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    details = {"cards": cards, "driver": _driver(), "torch_cuda": torch.version.cuda}
    if problems := list(driver_problems()):
        return Outcome(FAIL, len(cards), "GPUs", ">= 1", "; ".join(problems), details)
    for number in range(len(cards)):
        ones = torch.ones(256, 256, device=f"cuda:{number}", dtype=torch.bfloat16)
        if (ones @ ones).sum().item() != 256**3:
            return Outcome(FAIL, len(cards), "GPUs", ">= 1", f"GPU {number} computes a wrong product", details)
    return measured(len(cards), "GPUs", least=1, reason=", ".join(sorted(set(cards))), **details)


def _driver() -> str:
    """Its version; empty if it does not say."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
        return said.split()[0] if said.split() else ""
    return ""


def compiler(node) -> Outcome:
    """What the start compiles with; without nvcc torch's AdamW is taken. A dry run asks for what DeepSpeed's ops for CPUs need."""
    if not node.dry_run:
        sys.path.insert(0, str(ROOT / "train_scripts"))
        from toolchain import toolchain_of

        words, problems, notes = toolchain_of({})
        return measured(len(problems), "problems", most=0, reason="; ".join([*problems, *notes]) or words)
    found = {
        "g++": shutil.which("g++"),
        "ninja": shutil.which("ninja"),
        "Python.h": Path(sysconfig.get_paths()["include"], "Python.h").exists(),
    }
    missing = [name for name, there in found.items() if not there]
    reason = f"missing: {', '.join(missing)}" if missing else ""
    return measured(len(missing), f"of {len(found)} are missing", most=0, reason=reason)

"""What is compiled on CPUs: vLLM's engines, where a run asks for no eager ones."""

import hashlib
import os
from pathlib import Path

CACHE, DISABLED = "TORCHINDUCTOR_CACHE_DIR", "TORCHDYNAMO_DISABLE"
PROCESSOR = Path("/proc/cpuinfo")


def compile_nothing_on_cpus() -> None:
    """Have this process and those it starts run eager code where DeepSpeed trains on CPUs; call it before torch is imported."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        os.environ[DISABLED] = "1"


def keep_compiled_code_by_processor() -> None:
    """Have this process and those it starts keep what torch compiles for CPUs in a folder of this node's processor.

    It is a part of TORCHINDUCTOR_CACHE_DIR, or of ~/.cache/openrlhf_sagc/compiled. torch 2.13's cache of compiled graphs does not
    tell processors apart. What AVX-512 has written takes vectors of 16, and a processor with AVX2 then computes OpenRLHF's
    entropy from half of the vocabulary.

    Call it before torch is imported.
    """
    folder = Path(os.environ.get(CACHE) or Path.home() / ".cache/openrlhf_sagc/compiled")
    if folder.name != (processor := _processor()):  # or a process that started this one was here before
        os.environ[CACHE] = str(folder / processor)
    # vLLM 0.29's own cache does not tell them apart either, and on CPUs it never loads what it has saved.
    os.environ["VLLM_USE_AOT_COMPILE"] = "0"


def _processor() -> str:
    """A digest of what the processor can do."""
    lines = PROCESSOR.read_text().splitlines()
    can = next((line for line in lines if line.startswith(("flags", "Features"))), "")  # the latter on Arm
    return hashlib.sha256(can.encode()).hexdigest()[:16]

"""What is compiled on CPUs: vLLM's engines, where a run asks for no eager ones."""

import hashlib
import os
import platform
import tempfile
from pathlib import Path

CACHE, DISABLED = "TORCHINDUCTOR_CACHE_DIR", "TORCHDYNAMO_DISABLE"
PROCESSOR = Path("/proc/cpuinfo")


def compile_nothing_on_cpus() -> None:
    """Have this process and those it starts run eager code where DeepSpeed trains on CPUs; call it before torch is imported.

    What workers compile all the same goes to the folder of `keep_compiled_code_by_processor`.
    """
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        os.environ[DISABLED] = "1"
        keep_compiled_code_by_processor()


def keep_compiled_code_by_processor() -> None:
    """Have this process and those it starts keep what torch compiles for CPUs in a folder of this node's processor.

    It is a part of TORCHINDUCTOR_CACHE_DIR, or of ~/.cache/openrlhf_sagc/compiled; without a home that can be written a folder of
    this process's own. torch 2.13's cache of compiled graphs does not tell processors apart. What AVX-512 has written takes
    vectors of 16, and a processor with AVX2 then computes OpenRLHF's entropy from half of the vocabulary.

    Call it before torch is imported, which sets the variable to a folder for all processors.
    """
    folder, processor = Path(os.environ.get(CACHE) or _default()), _processor()
    if folder.name != processor:  # or a process that started this one was here before
        os.environ[CACHE] = str(folder / processor)
    # vLLM 0.29's own cache does not tell them apart either, and on CPUs it never loads what it has saved.
    os.environ["VLLM_USE_AOT_COMPILE"] = "0"


def _default() -> str:
    home = os.path.expanduser("~")
    if os.path.isabs(home) and os.access(home, os.W_OK | os.X_OK):
        return os.path.join(home, ".cache/openrlhf_sagc/compiled")
    return tempfile.mkdtemp(prefix="openrlhf_sagc.")


def _processor() -> str:
    """A digest of what the processor can do, and of what torch is told that it can."""
    lines = PROCESSOR.read_text().splitlines() if PROCESSOR.exists() else []
    can = next((line for line in lines if line.startswith(("flags", "Features"))), "")  # the latter on Arm
    told = os.environ.get("ATEN_CPU_CAPABILITY", "")
    return hashlib.sha256(f"{platform.machine()} {can} {told}".encode()).hexdigest()[:16]

"""What a measurement was made on."""

import os
import platform
from pathlib import Path


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor as Linux names it, or its architecture."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def data_type(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the CPU stack trains in: bfloat16 where the processor has it (train_scripts/countdown/train.sh)."""
    return "bfloat16" if cpuinfo.exists() and "avx512_bf16" in cpuinfo.read_text() else "float32"


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))

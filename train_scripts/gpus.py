"""The GPUs of this node and their driver; preflight.py asks before Ray starts."""

import importlib.util
import os
import re
import runpy
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FREE_SHARE = 0.9  # of a GPU's memory that nothing else may use


def memory_of_gpus() -> list[tuple[float, float]]:
    """MiB of each of this node's GPUs: in use, and in all.

    Raises:
        OSError, subprocess.SubprocessError: nvidia-smi does not work.
    """
    query = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    memory = [re.fullmatch(r"(\d+(?:\.\d+)?), *(\d+(?:\.\d+)?)", line) for line in said.splitlines()]
    if not all(memory) or not memory:  # of memory that GPU and host share it says [N/A]
        raise subprocess.SubprocessError(f"it says {said[:100]!r} instead of each GPU's memory")
    return [(float(found[1]), float(found[2])) for found in memory if found]


def gpu_problems(needed: int) -> Iterator[str]:
    """On this node: too few GPUs, or memory in use by others."""
    try:
        memory = memory_of_gpus()
    except (OSError, subprocess.SubprocessError) as error:
        yield f"nvidia-smi does not work, and the run needs {needed} GPUs: {error}"
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(memory) if visible is None else len([word for word in visible.split(",") if word])
    if count < needed:
        where = "" if visible is None else f" in CUDA_VISIBLE_DEVICES={visible}"
        yield f"the run needs {needed} GPUs, this node has {count}{where}: set ACTOR_GPUS and ENGINES"
    for number, (used, total) in enumerate(memory):
        if used > (1 - FREE_SHARE) * total and (visible is None or str(number) in visible.split(",")):
            yield f"GPU {number} has {used / 1024:.0f} of {total / 1024:.0f} GiB in use: end what runs there (nvidia-smi)"


def driver_problems() -> Iterator[str]:
    """The driver's CUDA is older than that which torch was built for. Looked for without importing torch."""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True, timeout=60).stdout
        found, needed = re.search(r"CUDA Version: *(\d+)", said), torch_cuda()
        needed = needed.split(".")[0]
        if found and needed and int(found[1]) < int(needed):
            yield (
                f"the driver has CUDA {found[1]}, torch was built for {needed}: update the driver, or load cuda-compat-{needed} as "
                "NGC's images do"
            )


def torch_cuda() -> str:
    """The CUDA that torch was built for, as 13.0; empty if none."""
    if (torch := importlib.util.find_spec("torch")) and torch.origin:
        return runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get("cuda") or ""
    return ""

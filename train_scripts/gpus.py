"""The GPUs of this node that CUDA shows, and their driver; preflight.py asks before Ray starts."""

import importlib.util
import os
import re
import runpy
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FREE_SHARE = 0.9  # of a GPU's memory that nothing else may use
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(NamedTuple):
    """A GPU as nvidia-smi knows it, with MiB of its memory: in use, and in all."""

    index: int
    uuid: str
    name: str
    used: float
    total: float


def visible_gpus() -> list[Gpu]:
    """This node's GPUs that CUDA shows to a process with this environment, in its order.

    CUDA_VISIBLE_DEVICES as the CUDA programming guide says (5.2.1.1): indices, or UUIDs and what they begin with; the first name
    that is no GPU ends the list. Where a GPU stands twice torch counts none (torch/cuda/__init__.py of 2.13), as it does not mix
    indices and UUIDs. Indices are nvidia-smi's; CUDA's differ on a node of unlike cards without CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Raises:
        OSError, subprocess.SubprocessError: nvidia-smi does not work, or does not know a GPU's memory; one line.
    """
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.used,memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    rows = [re.fullmatch(r"(\d+), *(GPU-[\w-]+), *(.+), *([^,]+), *([^,]+)", line) for line in said.splitlines()]
    if not all(rows) or not rows:
        raise subprocess.SubprocessError(f"it says {said[:100]!r} instead of each GPU's memory")
    return [_with_memory(row.groups()) for row in _visible([row for row in rows if row])]


def _visible(rows: list[re.Match[str]]) -> list[re.Match[str]]:
    """Of nvidia-smi's rows those that CUDA_VISIBLE_DEVICES names."""
    if (names := os.environ.get(VISIBLE)) is None:
        return rows
    if names.startswith("MIG-"):
        raise subprocess.SubprocessError(f"{VISIBLE}={names} names parts of GPUs: name whole ones, without MIG mode")
    shown: list[re.Match[str]] = []
    for name in names.split(","):
        if names.startswith("GPU-"):
            found = [row for row in rows if name.startswith("GPU-") and row[2].startswith(name)]
        else:
            index = re.match(r"\s*\+?(\d+)", name)
            found = [row for row in rows if index and int(row[1]) == int(index[1])]
        if len(found) != 1:
            break
        if found[0] in shown:
            return []
        shown += found
    return shown


def _with_memory(row: tuple[str, ...]) -> Gpu:
    index, uuid, name, used, total = row
    try:
        return Gpu(int(index), uuid, name, float(used), float(total))
    except ValueError:  # [N/A]
        raise subprocess.SubprocessError(
            f"it says {used} and {total} of the memory of GPU {index} ({name}), as in MIG mode or where GPU and host share it: "
            f"nvidia-smi -i {index} -mig 0 ends the mode, {VISIBLE} chooses other GPUs"
        ) from None


def gpu_problems(needed: int, fewest: int = 1) -> Iterator[str]:
    """On this node: too few GPUs, or memory in use by others.

    Args:
        fewest: GPUs with which the run could do if its sizes were smaller.
    """
    try:
        gpus = visible_gpus()
    except (OSError, subprocess.SubprocessError) as error:
        yield f"nvidia-smi does not tell this node's GPUs, and the run needs {needed}: {error}"
        return
    names = os.environ.get(VISIBLE)
    count, named = len(gpus), len([name for name in (names or "").split(",") if name])
    if names is not None and count != named:
        yield (
            f"{VISIBLE}={names} names {named} GPUs, of which CUDA shows {count}: give each GPU once, by its index or UUID in "
            "nvidia-smi -L; CUDA ends the list at any other name"
        )
    elif count < needed:
        where = "" if names is None else f" in {VISIBLE}={names}"
        smaller = "set ACTOR_GPUS, ENGINES and TENSOR_PARALLEL"
        yield (
            f"the run needs {needed} GPUs, this node has {count}{where}: "
            f"{smaller if count >= fewest else f'take a node that has {fewest}, which are the fewest for this script'}"
        )
    yield from memory_problems(gpus)


def memory_problems(gpus: list[Gpu]) -> Iterator[str]:
    """Memory of these GPUs that others use."""
    for gpu in gpus:
        if gpu.used > (1 - FREE_SHARE) * gpu.total:
            yield (
                f"GPU {gpu.index} has {gpu.used / 1024:.0f} of {gpu.total / 1024:.0f} GiB in use: end what runs there "
                "(nvidia-smi)"
            )


def driver_cuda() -> str:
    """The version of the driver's CUDA; empty if nvidia-smi does not say it."""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True, timeout=60).stdout
        if found := re.search(
            r"CUDA (?:UMD )?Version: *(\d+(?:\.\d+)?)", said
        ):  # the driver's user-mode part, since 610
            return found[1]
    return ""


def driver_problems() -> Iterator[str]:
    """The driver's CUDA is older than that which torch was built for. Looked for without importing torch."""
    found, needed = driver_cuda().split(".")[0], torch_cuda().split(".")[0]
    if found and needed and int(found) < int(needed):
        yield (
            f"the driver has CUDA {found}, torch was built for {needed}: update the driver, or load cuda-compat-{needed} as "
            "NGC's images do"
        )


def torch_cuda() -> str:
    """The CUDA that torch was built for, as 13.0; empty if none."""
    if (torch := importlib.util.find_spec("torch")) and torch.origin:
        return runpy.run_path(str(Path(torch.origin).with_name("version.py"))).get("cuda") or ""
    return ""

"""A program in the place of nvidia-smi."""

import json
import sys
from pathlib import Path

HEADER = "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0 |"
PROGRAM = """#!{python} -IS
import sys
query = [word.split("=")[1].split(",") for word in sys.argv if word.startswith("--query-gpu=")]
if {text!r} is not None:
    print({text!r})
elif query:
    for gpu in {gpus}:
        print(*(gpu[name] for name in query[0]), sep=", ")
else:
    print({header!r})
"""


def write_nvidia_smi(
    folder: Path, *memory: tuple, header: str = HEADER, names: tuple[str, ...] = (), text: str | None = None
) -> list[str]:
    """Write FOLDER/nvidia-smi, which knows a GPU for each pair of `memory`, and return their UUIDs.

    Args:
        memory: of each GPU, MiB in use and in all, or other words.
        header: what it prints without a query.
        names: of the cards; H100s by default.
        text: what it prints whatever it is asked.
    """
    uuids = [f"GPU-{0x8932F937 + number:08x}-d72c-4106-c12f-20bd9faed9f6" for number in range(len(memory))]
    gpus = [
        {"index": number, "uuid": uuid, "name": name, "memory.used": used, "memory.total": total}
        for number, (uuid, (used, total)) in enumerate(zip(uuids, memory))
        for name in [names[number] if names else "NVIDIA H100 80GB HBM3"]
    ]
    program = PROGRAM.format(python=sys.executable, text=text, gpus=json.dumps(gpus), header=header)
    (folder / "nvidia-smi").write_text(program)
    (folder / "nvidia-smi").chmod(0o755)
    return uuids

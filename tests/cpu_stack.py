"""Where things are, and the environment of the CPU stack."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def cpu_environment(tree: str) -> dict[str, str]:
    """The environment that train_scripts/on_cpu.sh gives a command, but for the folder and the token of its Ray cluster."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = ["bash", ROOT / "train_scripts/on_cpu.sh", tree, "env", "-0"]
    output = subprocess.run(command, env=outer, capture_output=True, text=True, check=True).stdout
    given = dict(entry.split("=", 1) for entry in output.rstrip("\0").split("\0"))
    own = ("RAY_TMPDIR", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
    return {name: value for name, value in given.items() if name not in own}


def deepspeed_environment(*python_path) -> dict[str, str]:
    """That of a process that uses DeepSpeed without Ray, and finds modules in these folders.

    It has what the set-up has compiled, and the ninja that did: another one would compile it again.
    """
    return {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, python_path)),
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build/torch_extensions"),
    }

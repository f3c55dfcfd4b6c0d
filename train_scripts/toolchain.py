"""The compilers of this node: toolchain.py says what the training can compile here; preflight.py asks before Ray starts."""

import shutil


def toolchain_of(settings: dict[str, list[str]], released: bool = False) -> tuple[str, list[str], list[str]]:
    """The compilers in a few words, what a run with these settings cannot do without, and what it does in another way."""
    return "nvcc" if shutil.which("nvcc") else "no nvcc", [], []

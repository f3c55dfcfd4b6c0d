"""The attention that models run with on this node: attention.py [--fetch] loads, or only fetches, the launch scripts' kernel.

preflight.py loads it as the training will, in a process of its own, before Ray starts. A version number says too little: the kernel's
builds are for one torch and one CUDA each, and they are on the hub.
"""

import argparse
import os
import runpy
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gpus import torch_cuda  # noqa: E402

# By their paths, as in preflight.py.
without_secrets = runpy.run_path(str(Path(__file__).parent.parent / "openrlhf_sagc/redaction.py"))["without_secrets"]
_package = runpy.run_path(str(Path(__file__).parent.parent / "openrlhf_sagc/config/attention.py"))
FLAG, DEFAULT, RECIPES = _package["FLAG"], _package["DEFAULT"], _package["KERNEL"]
KERNELS = "kernels>=0.16,<0.17"  # as transformers 5.15 takes it
COMPILED = f"MAX_JOBS=4 pip install flash-attn==2.8.3 --no-build-isolation (needs nvcc) and {FLAG} {DEFAULT}"
SLOWER = f"{FLAG} sdpa (its time grows with the square of a pack)"
CACHE = "HF_HOME, else ~/.cache/huggingface"
FETCHED = f"python3 train_scripts/attention.py --fetch where there is a network, and its cache ({CACHE}) copied here"
OFFLINE = "HF_HUB_OFFLINE"
EXPORT = f'export {OFFLINE}=1, or on a cluster RUNTIME_ENV_JSON=\'{{"env_vars": {{"{OFFLINE}": "1"}}}}\''
SECONDS = 900  # to fetch some hundred MB, and to load them
OF_TORCH = ("sdpa", "eager", "flex_attention")
RING = ("flash_attn", "ring_flash_attn")
# The training's own way, in transformers: it asks the hub, chooses the build and loads it.
LOAD = """
import sys
try:
    from transformers import modeling_flash_attention_utils as attention
    name, known = sys.argv[1], attention.FLASH_ATTENTION_COMPATIBILITY_MATRIX
    version = [version for version in known if name == f"flash_attention_{version}"]
    if version and not known[version[0]]["general_availability_check"]():
        name = attention.FLASH_ATTN_KERNEL_FALLBACK[name]
    attention.lazy_import_flash_attention(name)
except BaseException as error:
    print("cause:", type(error).__name__, *str(error).split())
    sys.exit(1)
"""
NO_HUB = (
    "verify publisher trust",
    "connect",
    "offline",
    "could not resolve",
    "name resolution",
    "name or service",
    "timed out",
    "unreachable",
    "localentrynotfound",
    "max retries",
)


def attention_of(settings: dict[str, list[str]]) -> tuple[str, str]:
    """What models run with here, in words, and in one line why they cannot, which is empty if they can.

    Args:
        settings: the training's flags with their values.
    """
    given = (settings.get(FLAG) or [DEFAULT])[0]
    if (settings.get("--ds.ring_attn_size") or ["1"])[0] != "1":
        missing = [name for name in RING if find_spec(name) is None]
        return f"{DEFAULT} in a ring", missing and f"--ds.ring_attn_size needs {' and '.join(missing)}" or ""
    if given == DEFAULT and find_spec("flash_attn") is None:
        given = RECIPES  # as the package does
    if "/" not in given and not given.startswith("flash_attention_"):
        if given not in OF_TORCH:
            return given, f"{FLAG} {given} is no attention: {', '.join([RECIPES, DEFAULT, *OF_TORCH])}"
        packed = "--ds.packing_samples" in settings or "--train.dynamic_batch_enable" in settings
        return given + (", which costs the square of a whole pack" if packed else ""), ""
    wrong = why_not(given)
    return f"{given}, which loads here", wrong


@cache
def why_not(name: str) -> str:
    """Why an attention does not load here, in one line with what would work; empty if it does."""
    given, others = f"{FLAG} {name}", _others(name)
    if "/" in name and find_spec("kernels") is None:
        return f"{given} needs the package kernels: pip install '{KERNELS}', or {others}"
    print(f"train_scripts/attention.py: loading {name}, for up to some minutes the first time", file=sys.stderr)
    if not (cause := _cause(name, {})):
        return ""
    if _hub_is_away(cause) and os.environ.get(OFFLINE) != "1" and not _cause(name, {OFFLINE: "1"}):
        return f"{given} is in the cache of this node, but the hub does not answer: {EXPORT}"
    return f"{given} {_explained(cause, name)}"


def _others(name: str) -> str:
    """What works where an attention does not."""
    return f"{COMPILED if name == RECIPES else f'{FLAG} {RECIPES}'}, or {SLOWER}"


def _hub_is_away(cause: str) -> bool:
    return "build variant" not in cause and any(word in cause.lower() for word in NO_HUB)


def _explained(cause: str, name: str) -> str:
    """A cause in one line with what would work."""
    if "build variant" in cause:
        return f"has no build for this torch, of CUDA {torch_cuda()}: {_others(name)}"
    if _hub_is_away(cause):
        return f"is neither in the cache of this node nor can the hub be reached: {FETCHED}, or {_others(name)}"
    return f"does not load ({cause:.200}): {_others(name)}"


def _cause(name: str, environment: dict[str, str]) -> str:
    """What loading an attention in a new process ends with; empty if it loads."""
    command = [sys.executable, "-c", LOAD, name]
    try:
        run = subprocess.run(
            command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"it has not ended after {SECONDS} s"
    causes = [line for line in run.stdout.splitlines() if line.startswith("cause: ")]
    if run.returncode and not causes:  # it died, as of a library that does not fit
        return (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
    return causes[-1].removeprefix("cause: ") if run.returncode else ""


def fetch(name: str) -> None:
    """Fetch a kernel's build for the installed torch into the hub's cache, and load nothing.

    Raises:
        Exception: of the hub's libraries, as there are many.
    """
    from kernels import install_kernel

    repository, _, revision = name.partition("@")
    install_kernel(repository, revision=revision)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="bring the kernel into the hub's cache, and load nothing")
    only_fetch = parser.parse_args().fetch
    try:
        wrong = fetch(RECIPES) if only_fetch else why_not(RECIPES)
    except Exception as error:
        cause = " ".join([type(error).__name__, *str(error).split()])
        wrong = f"{RECIPES} was not fetched: it {_explained(cause, RECIPES)}"
    print(f"train_scripts/attention.py: {without_secrets(wrong or RECIPES + ' is here')}")
    sys.exit(2 if wrong else 0)

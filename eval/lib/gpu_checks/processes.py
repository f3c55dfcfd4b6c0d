"""Processes of a check: they begin in a session of their own, and all that they have started ends with them.

Ray's daemons and workers leave the process group, and keep the environment: a mark in it finds them.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[3]
MARK = "OPENRLHF_SAGC_ON_GPU"  # a process that a marked one starts has the same mark, or one that begins with it
# Variables of the shell that launch.sh or Ray would take; a check gives its own.
OF_LAUNCHES = frozenset(
    "AGENT ATTENTION GPU_MEMORY GROUP_SIZES ISOLATED_NETWORK LONG_SAMPLES PREFLIGHT RAY_ADDRESS RUNTIME_ENV_JSON SAGC SHAPE SUBMIT "
    "TOKENS_PER_GPU WANDB_API_KEY".split()
)
ENDING = 10.0  # seconds in which a process may end by itself once it is told to


@contextmanager
def started(command: Sequence[object], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen]:
    """Run a command in the clone's folder, with its output in a file; nothing of it is left when the block ends.

    The process has its mark as an attribute `mark`.
    """
    mark = f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex}"
    ray = tempfile.mkdtemp(prefix="gpu.", dir="/tmp")  # short: Ray's socket paths are limited to 107 characters
    ours = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHES}
    built = {
        "TORCH_EXTENSIONS_DIR": str(ROOT / "build/on_gpu_extensions")
    }  # a check that is ended leaves a lock there
    given = {**built, **ours, **environment, MARK: mark, "RAY_TMPDIR": ray}
    with log.open("w") as sink:
        process = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, env=given, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            start_new_session=True,
        )  # fmt: skip
    process.mark = mark  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        _end(process, mark)
        shutil.rmtree(ray, ignore_errors=True)


def marked(mark: str) -> list[int]:
    """Ids of the processes, besides this one, whose environment has a mark that begins so."""
    found, entry = [], f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended, or another user's
            variables = (folder / "environ").read_bytes().split(b"\0")
            if int(folder.name) != os.getpid() and any(variable.startswith(entry) for variable in variables):
                found.append(int(folder.name))
    return found


def _end(process: subprocess.Popen, mark: str) -> None:
    if process.poll() is None:
        process.terminate()  # the scripts end their training, and remove Ray's folder
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + ENDING
    while (left := marked(mark)) and time.monotonic() < deadline:
        for number in left:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.1)

"""The OpenRLHF of a command: one of the trees that this package carries, first on the path of the run's processes.

An installed `openrlhf` is passed over, and not changed. A tree that PYTHONPATH names is used where it is what the command runs, and else
passed over like one in a job's working_dir. Ray puts the command's own folder before all else in its workers, so that none may be there.
"""

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from openrlhf_sagc.config.compilation import DISABLED, keep_compiled_code_by_processor
from openrlhf_sagc.config.refusal import refusal, refuse
from openrlhf_sagc.run.ray_start import started

VERSION = "0.11.2"  # of OpenRLHF, which the patches are for
PATCHED, RELEASED = "patched", "base"
ON_CPU = "cpu-"  # begins the names of the CPU stack's trees
GIVEN = "OPENRLHF_SAGC_TREE"  # to Ray's workers: the tree's name, and a digest of the code
HOOK = "worker_process_setup_hook"  # of a runtime environment, which has one
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # by which Ray tells a submitted job's command the job's runtime environment
NOTICE = b"# This file of OpenRLHF"  # begins the line that patches/trees.py adds to a changed file
PACKAGE = Path(__file__).parents[1]
STACK = ("deepspeed", "peft", "ray", "torch", "transformers", "vllm")  # what a run imports besides, if not only these


class Tree(NamedTuple):
    """A tree of OpenRLHF, by its name, and the folder that holds its package `openrlhf`."""

    name: str
    folder: Path


def use_tree(kind: str) -> Tree:
    """Put a tree of OpenRLHF first on the path of this process, and of those that it starts.

    Args:
        kind: PATCHED or RELEASED; on the CPU stack (DS_ACCELERATOR=cpu) the tree for that.

    Raises:
        SystemExit: there is no such tree, or another OpenRLHF comes first; the message is one line.
    """
    name = ON_CPU + kind if os.environ.get("DS_ACCELERATOR") == "cpu" else kind
    of_job = _job_environment().get("working_dir") is not None  # which workers have in PYTHONPATH
    tree, passed_over = _put_first(name, [] if of_job else [os.getcwd()], [os.getcwd()] if of_job else [])
    for package, problem in passed_over:
        print(
            f"openrlhf_sagc: {package} {problem}, and is passed over: this run is of the package's own OpenRLHF {VERSION}",
            file=sys.stderr,
        )
    return tree


def check_stack(kind: str = PATCHED) -> None:
    """Look for what OpenRLHF imports, which is of no use for `--help`.

    Args:
        kind: PATCHED or RELEASED, which imports flash-attn besides, but on the CPU stack.

    Raises:
        SystemExit: this package was installed without it; one line.
    """
    missing = [name for name in STACK if importlib.util.find_spec(name) is None]
    refuse(
        missing, f"no module {' '.join(missing)}: install this package with [gpu] behind its name, or bash install.sh"
    )
    refuse(
        kind == RELEASED
        and os.environ.get("DS_ACCELERATOR") != "cpu"
        and importlib.util.find_spec("flash_attn") is None,
        f"no module flash_attn, which OpenRLHF {VERSION} imports as released: pip install flash-attn==2.8.3 "
        "--no-build-isolation, or compare with python -m openrlhf_sagc.off",
    )


def bring_tree(tree: Tree, eager: bool) -> None:
    """Have the next `ray.init` of this process put the tree first in Ray's workers, too, on every node.

    What OpenRLHF starts or joins Ray with stays, unless a submitted job gives the same field or variable: its value
    counts. Ray itself would end such a job (`Failed to merge the Job's runtime env`). It comes to Ray after its own checks, as
    released.

    Args:
        eager: whether nothing is compiled in the workers on the CPU stack, as --vllm.enforce_eager asks for. GPUs' are left alone.

    Raises (by `ray.init`):
        SystemExit: the job has a setup hook of its own; one line.
    """
    import ray

    init = ray.init
    compilation = {DISABLED: str(int(eager))} if tree.name.startswith(ON_CPU) else {}
    if compilation and not eager:
        print(
            "openrlhf_sagc: vLLM compiles its model before the first step, which takes longest the first time on a processor; "
            "--vllm.enforce_eager starts at once, with slower steps",
            file=sys.stderr,
        )

    def init_with_tree(*args, runtime_env=None, **settings):
        ray.init = init
        job = _job_environment()
        hook = f"{__name__}.{use_given_tree.__name__}"
        refuse(
            job.get(HOOK, hook) != hook,
            f"the job's runtime environment has {HOOK} {job.get(HOOK)}, and OpenRLHF comes to Ray's workers by one of its own: "
            "submit the job without it",
        )
        own = {**(runtime_env or {}), HOOK: hook}
        variables, of_job = {**own.pop("env_vars", {}), **compilation}, job.get("env_vars") or {}
        own = {name: value for name, value in own.items() if name not in job}
        own["env_vars"] = {name: value for name, value in variables.items() if name not in of_job}
        own["env_vars"][GIVEN] = f"{tree.name} {digest(tree.folder)}"
        return started(init, *args, runtime_env=own, **settings)

    ray.init = init_with_tree


def use_given_tree() -> None:
    """Run by each of Ray's workers as it starts: use this node's tree of the name that the command has given.

    With a tree for CPUs the worker trains on them, also in a Ray that was started without these settings.

    Raises:
        RuntimeError: this node has none, or not the command's; one line. Ray ends the worker with it.
    """
    name, expected = os.environ[GIVEN].split()
    if name.startswith(ON_CPU):
        os.environ["DS_ACCELERATOR"] = "cpu"
        if os.environ.get(DISABLED) != "1":
            keep_compiled_code_by_processor()
    try:
        folder = _put_first(name)[0].folder
    except SystemExit as refused:
        raise RuntimeError(str(refused)) from None
    if digest(folder) != expected:
        raise RuntimeError(
            f"openrlhf_sagc: {PACKAGE}, or its OpenRLHF, differs from that of the command: install it anew on every node"
        )


def _put_first(
    name: str, first: Sequence[str] = (), others: Sequence[str] = ()
) -> tuple[Tree, list[tuple[Path, str]]]:
    """Put the tree first on the path.

    Args:
        name: of the tree.
        first: folders that come before it in Ray's workers, whatever is done here.
        others: folders besides those of PYTHONPATH in which Python would find an OpenRLHF.

    Returns:
        The tree, and what is passed over for it: the package, and why it is not what the command runs.
    """
    found, passed_over = _found(name, first, [*others, *_python_path()])
    folder = found or _carried(name)
    if sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))
    if passed_over or str(folder) not in _python_path():
        paths = [str(folder), *(path for path in _python_path() if path != str(folder))]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the processes that vLLM starts
    imported = Path(importlib.import_module("openrlhf").__path__[0]).parent
    if not imported.samefile(folder):
        raise refusal(f"openrlhf was imported from {imported} before the command began: start the command by itself")
    return Tree(name, folder), passed_over


def _job_environment() -> dict:
    """The runtime environment of the submitted job that this command is of; empty if there is none."""
    return json.loads(os.environ.get(JOB, "{}")).get("runtime_env") or {}


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def _carried(name: str) -> Path:
    """The tree of the installed package, or that of a clone."""
    places = [PACKAGE / "trees" / name, PACKAGE.parent / "build" / name]
    for place in places:
        if (place / "openrlhf").is_dir():
            return place
    raise refusal(f"no OpenRLHF in {places[0]}: install this package's wheel, or bash patches/build.sh in its clone")


def _found(name: str, first: Sequence[str], others: Sequence[str]) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The folder of the first OpenRLHF that is what the command runs, if there is one, and what stands before it.

    Raises:
        SystemExit: one is in the folders `first` that is not.
    """
    passed_over: list[tuple[Path, str]] = []
    for path in [*first, *others]:
        package = Path(path, "openrlhf").absolute()
        if not package.is_dir():
            continue
        if not (problem := _problem(name, package)):
            return package.parent, passed_over
        refuse(
            path in first,
            f"{package} would come before this package's OpenRLHF, and {problem}: start in another folder",
        )
        passed_over.append((package, problem))
    return None, passed_over


def _problem(name: str, package: Path) -> str:
    """Why an OpenRLHF is not what the command runs; empty if it is."""
    command = package / "cli/train_ppo_ray.py"
    if not command.is_file():
        return "is no OpenRLHF"
    if (version := _version(package.parent)) not in (VERSION, None):
        return f"is {version}, while the patches are for {VERSION}"
    is_patched = "\ndef build_parser(" in command.read_text()
    if is_patched != name.endswith(PATCHED):
        return "is patched" if is_patched else "is not patched"
    return ""


def _version(folder: Path) -> str | None:
    """That of the OpenRLHF in a folder, if it says so: as a clone of OpenRLHF does, or pip."""
    if (stated := folder / "version.txt").is_file():
        return stated.read_text().strip()
    installed = next(folder.glob("openrlhf-*.dist-info"), None)
    return installed.name.removeprefix("openrlhf-").removesuffix(".dist-info") if installed else None


def digest(tree: Path) -> str:
    """Of this package's code and the tree's, without the notices in the files of a wheel."""
    carried, found = PACKAGE / "trees", hashlib.sha256()
    for folder in (PACKAGE, tree / "openrlhf"):
        files = [file for file in folder.rglob("*.py") if folder != PACKAGE or carried not in file.parents]
        for file in sorted(files):
            first, _, rest = (code := file.read_bytes()).partition(b"\n")
            found.update(f"{file.relative_to(folder)}\0".encode() + (rest if first.startswith(NOTICE) else code))
    return found.hexdigest()[:16]

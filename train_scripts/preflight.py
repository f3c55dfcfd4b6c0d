"""Says what a run lacks before Ray starts, a line each: preflight.py [OPTION...] MODULE FLAG... Exit code 2 if anything.

launch.sh calls it with the training's own command. On a cluster it first waits for the GPUs of all nodes.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import runpy
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import psutil
except ModuleNotFoundError:
    sys.exit("train_scripts/preflight.py: psutil is not installed, nor what else a GPU node needs: bash install.sh")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from attention import attention_of  # noqa: E402
from cluster import gpu_count_problems, node_problems  # noqa: E402
from flag_words import settings_of, value  # noqa: E402
from gpus import driver_problems, gpu_problems  # noqa: E402
from memory_problems import card_gb, head_problems, memory_problems  # noqa: E402
from ray_token import open_cluster_problems, reason_for_token, token_problems  # noqa: E402
from toolchain import toolchain_of  # noqa: E402

# By its path: what is printed has no secrets where the package is missing, too.
_redaction = runpy.run_path(str(HERE.parent / "openrlhf_sagc/redaction.py"))
hide, without_secrets = _redaction["hide"], _redaction["without_secrets"]
GB = 1e9
LEAST_SHARED_MEMORY_GB = 4  # of /dev/shm, where Ray has its objects; containers begin with 0.06
DEFAULT_REWARD = "math_reward.py"
RELEASED = "openrlhf_sagc.unpatched"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--disk_gb", type=float, default=0, help="free space that the output folder needs")
    parser.add_argument("--memory_gb", type=float, default=0, help="memory that this node needs")
    parser.add_argument("--cluster", help="address of the dashboard of the Ray cluster that takes the job")
    parser.add_argument("--wait_minutes", type=float, default=10, help="for the nodes of that cluster")
    parser.add_argument(
        "--isolated_network",
        action="store_true",
        help="several nodes may go without a token, as the platform lets nobody else reach them",
    )
    parser.add_argument(
        "--ports", type=int, nargs="*", default=[], help="that have to be free for Ray's head; without MODULE"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="module and flags of the training")
    return parser.parse_args()


def module_problems(module: str, settings: dict[str, list[str]]) -> Iterator[str]:
    """What cannot be imported. Only looked for, as importing it all takes a minute."""
    needed = dict.fromkeys(["ray", "vllm", "openrlhf_sagc"], "it with all else that a GPU node needs: bash install.sh")
    if module == RELEASED and os.environ.get("DS_ACCELERATOR") != "cpu":
        needed["flash_attn"] = (
            "flash-attn, which OpenRLHF as released imports: MAX_JOBS=4 pip install flash-attn==2.8.3 --no-build-isolation, or compare with SAGC=off"
        )
    if "--logger.wandb.key" in settings:
        needed["wandb"] = "W&B, which WANDB_API_KEY switches on: pip install wandb, or unset WANDB_API_KEY"
    for name, what in needed.items():
        if importlib.util.find_spec(name) is None:
            yield f"no module {name}: install {what}"


def flag_problems(module: str, flags: list[str], *, names_alone: bool = False) -> Iterator[str]:
    """What the training's own parser and checks say of the OpenRLHF, the flags, the data and the reward's or agent's file.

    OpenRLHF as released has no checks to ask, so of its run the flags' names and the file alone are looked at.

    Args:
        names_alone: look at the flags' names alone, where a module is missing that the rest needs.
    """
    sys.path.append(str(HERE.parent))  # where the package is not installed
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            _use_tree(module)
            (NAME_CHECKS if names_alone else FLAG_CHECKS)[module](flags)
    except SystemExit as error:  # of argparse with a number, and its line printed
        lines = (
            said.getvalue().strip().splitlines()[-1:]
            if isinstance(error.code, int)
            else str(error.code or "").splitlines()
        )
        yield from (line.removeprefix("openrlhf_sagc: ") for line in lines)


def _use_tree(module: str) -> None:
    from openrlhf_sagc.run import trees

    trees.use_tree(trees.RELEASED if module == RELEASED else trees.PATCHED)


def _check_flags(flags: list[str]) -> None:
    from openrlhf_sagc.__main__ import read_settings

    read_settings(flags)


def _check_flags_without_scheduler(flags: list[str]) -> None:
    """As the command does, and what the flags name."""
    from openrlhf_sagc.config.inputs import check_inputs
    from openrlhf_sagc.off import read_arguments

    check_inputs(read_arguments(flags))


def _check_flags_of_released(flags: list[str]) -> None:
    from openrlhf_sagc.config.inputs import check_model

    _check_names_of_released(flags)
    flag = "--actor.model_name_or_path"
    check_model(flag, value(settings_of(flags), flag))
    _look_at_files(settings_of(flags))


def _check_names_of_released(flags: list[str]) -> None:
    from openrlhf_sagc.unpatched import read_flags

    read_flags(flags)


FLAG_CHECKS = {
    "openrlhf_sagc": _check_flags,
    "openrlhf_sagc.off": _check_flags_without_scheduler,
    RELEASED: _check_flags_of_released,
}


def _check_names(flags: list[str]) -> None:
    from openrlhf_sagc.arguments import add_arguments
    from openrlhf_sagc.config.flags import parse_flags

    parse_flags(flags, add_arguments)


def _check_names_without_scheduler(flags: list[str]) -> None:
    from openrlhf_sagc.arguments import add_arguments
    from openrlhf_sagc.config.flags import openrlhf_parser, parse_plain_flags
    from openrlhf_sagc.config.refusal import OFF

    parse_plain_flags(flags, openrlhf_parser(), add_arguments, OFF)


# What needs OpenRLHF's source alone, and none of the modules that it imports.
NAME_CHECKS = {
    "openrlhf_sagc": _check_names,
    "openrlhf_sagc.off": _check_names_without_scheduler,
    RELEASED: _check_names_of_released,
}


def _look_at_files(settings: dict[str, list[str]]) -> None:
    """The file of the reward or agent alone."""
    from openrlhf_sagc.config.plug_in_import import AGENT, REWARD
    from openrlhf_sagc.config.plug_ins import looked_at

    for flag, name in (("--reward.remote_url", REWARD), ("--train.agent_func_path", AGENT)):
        if value(settings, flag).endswith(".py"):
            with looked_at(flag, value(settings, flag), name):
                pass


def default_reward_problems(settings: dict[str, list[str]]) -> Iterator[str]:
    """The default reward grades an answer, which needs math-verify."""
    file = Path(value(settings, "--reward.remote_url"))
    if file.name != DEFAULT_REWARD or file.parent.name != "openrlhf_sagc" or not file.exists():
        return
    try:
        function = runpy.run_path(str(file))["reward_func"]
        rewards = function([r"\boxed{\frac{10}{2}}"], [""], ["5"])["rewards"].tolist()
        if rewards != [1.0]:
            yield f"--reward.remote_url {file} gives 10/2 for 5 the reward {rewards}"
    except Exception as error:
        yield f"--reward.remote_url {file} cannot be used: {type(error).__name__}: {error}"


def gpus_needed(settings: dict[str, list[str]]) -> int:
    """GPUs of all nodes together."""
    actors = int(value(settings, "--actor.num_nodes", "1")) * int(value(settings, "--actor.num_gpus_per_node", "8"))
    if fewest_gpus(settings) == 1:
        return actors
    engines = int(value(settings, "--vllm.num_engines", "0"))
    return actors + engines * int(value(settings, "--vllm.tensor_parallel_size", "1"))


def fewest_gpus(settings: dict[str, list[str]]) -> int:
    """Of such a run with the smallest sizes: 2 where engines have GPUs of their own."""
    return 1 if "--train.colocate_all" in settings and "--train.async_enable" not in settings else 2


def problems_here(module: str, settings: dict[str, list[str]], missing: list[str]) -> Iterator[str]:
    """Of this node: its GPUs, driver, compilers and attention; what the run does in another way is printed."""
    yield from gpu_problems(gpus_needed(settings), fewest_gpus(settings))
    yield from driver_problems()
    yield from memory_problems(module, settings, card_gb())
    _, problems, notes = toolchain_of(settings, released=module == RELEASED)
    yield from problems
    for note in notes:
        print(f"train_scripts/preflight.py: {note}", flush=True)
    if not missing:
        yield from filter(None, [attention_of(settings)[1]])


def port_problems(ports: list[int]) -> Iterator[str]:
    for port in ports:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError as error:
                yield f"port {port} is not free ({error.strerror}): end the Ray that has it, or set PORT"


def room_problems(output: str, disk_gb: float, memory_gb: float) -> Iterator[str]:
    folder = Path(output).absolute()
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield f"--ckpt.output_dir {output} cannot be written to"
    free = shutil.disk_usage(folder).free / GB
    if free < disk_gb:
        yield f"--ckpt.output_dir {output} has {free:.0f} GB of free disk, the run's checkpoints need {disk_gb:.0f}"
    memory = psutil.virtual_memory().total / GB
    if memory < memory_gb:
        yield f"this node has {memory:.0f} GB of memory, the run needs {memory_gb:.0f}"
    shared = shutil.disk_usage("/dev/shm").total / GB
    if memory_gb and shared < LEAST_SHARED_MEMORY_GB:
        yield f"/dev/shm has {shared:.2g} GB, Ray needs {LEAST_SHARED_MEMORY_GB}: docker run --shm-size, or a larger one"


def problems(options: argparse.Namespace) -> Iterator[str]:
    """What is known at once; if that is nothing, what the cluster says, which may take minutes."""
    found = 0
    for line in known_problems(options):
        found += 1
        yield line
    if options.command and options.device == "gpu" and options.cluster and not found:
        yield from cluster_problems(options)


def cluster_problems(options: argparse.Namespace) -> Iterator[str]:
    """What the cluster lacks: GPUs, else a token, else what its nodes lack."""
    module, *flags = options.command
    settings = settings_of(flags)
    found = list(gpu_count_problems(options.cluster, gpus_needed(settings), options.wait_minutes))
    if not found and reason_for_token(settings, options.cluster) and not options.isolated_network:
        found = list(open_cluster_problems(options.cluster))
    yield from found or node_problems(options.cluster, module, settings, options.wait_minutes)


def known_problems(options: argparse.Namespace) -> Iterator[str]:
    yield from port_problems(options.ports)
    if options.ports and not options.isolated_network:
        yield from token_problems("a head that other nodes reach")
    if not options.command:
        return
    module, *flags = options.command
    settings = settings_of(flags)
    missing = list(module_problems(module, settings))
    yield from missing
    yield from room_problems(value(settings, "--ckpt.output_dir", "ckpt"), options.disk_gb, options.memory_gb)
    why = "" if options.isolated_network or missing else reason_for_token(settings, options.cluster)
    if why:
        yield from token_problems(why)
    if options.device == "gpu" and not options.cluster:
        yield from problems_here(module, settings, missing)
    refused = list(flag_problems(module, flags, names_alone=bool(missing)))
    yield from refused or head_problems(settings)
    if not missing:
        yield from default_reward_problems(settings)


def all_right(options: argparse.Namespace) -> str:
    """What was looked at, and is right."""
    if not options.command:
        return "ports and Ray's token are as Ray's head needs them"
    what = (
        "flags' names and the reward's or agent's file" if options.command[0] == RELEASED else "flags, data and files"
    )
    asked = options.device == "gpu" and not options.cluster
    attention = f"; attention: {attention_of(settings_of(options.command[1:]))[0]}" if asked else ""
    return f"modules, disk, memory, GPUs, {what} are as the run needs them{attention}"


if __name__ == "__main__":
    found = 0
    options = parse_arguments()
    hide(sys.argv[1:])
    for line in problems(options):
        print(f"train_scripts/preflight.py: {without_secrets(line)}", flush=True)
        found += 1
    if found:
        raise SystemExit(2)
    print(f"train_scripts/preflight.py: {all_right(options)}")

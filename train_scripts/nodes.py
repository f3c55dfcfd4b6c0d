"""Describes the GPU nodes of the Ray cluster whose job this is, in one line of JSON: nodes.py SECONDS MODULE FLAG...

cluster.py submits it before a run, with the flags of the training that what it looks for depends on. A node that has not answered
after SECONDS is named.
"""

import importlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from attention import attention_of  # noqa: E402
from flag_words import settings_of  # noqa: E402
from gpus import driver_cuda, driver_problems  # noqa: E402
from gpus import memory_problems as memory_in_use  # noqa: E402
from gpus import visible_gpus
from memory_problems import card_gb, memory_problems  # noqa: E402
from toolchain import toolchain_of  # noqa: E402

BEGIN = "GPU nodes: "  # of the line
RELEASED = "openrlhf_sagc.unpatched"
# A task without GPUs would see none: Ray 2.55 empties CUDA_VISIBLE_DEVICES for it.
SEES_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}


def this_node(counted: int, module: str, flags: list[str]) -> dict[str, Any]:
    """What this node has: texts, and lists of lines.

    Args:
        counted: GPUs that Ray hands out here.
        module: of the training; with its flags.
    """
    gpus, problems = [], []
    try:
        gpus = visible_gpus()
        problems += memory_in_use(gpus)
        if len(gpus) < counted:
            problems.append(
                f"CUDA shows {len(gpus)} GPUs, Ray counts {counted}: ray start with --num-gpus {len(gpus)}"
            )
    except (OSError, subprocess.SubprocessError) as error:
        problems.append(f"nvidia-smi does not tell its GPUs: {error}")
    settings = settings_of(flags)
    problems += memory_problems(module, settings, card_gb())
    attention, missing = attention_of(settings)
    toolchain, lacking, notes = toolchain_of(settings, module == RELEASED)
    cards = Counter((gpu.name, round(gpu.total * 2**20 / 1e9)) for gpu in gpus)
    return {
        "cards": ", ".join(f"{count} x {name}, {gb} GB" for (name, gb), count in cards.items()) or "none",
        "driver": f"CUDA {driver_cuda() or 'unknown'}",
        "toolchain": toolchain,
        "attention": attention,
        "problems": [*problems, *driver_problems(), *filter(None, [missing]), *lacking],
        "notes": notes,
    }


def ask_nodes(seconds: float, module: str, flags: list[str]) -> list[dict[str, Any]]:
    """What each node with GPUs has, or its `error`, with its `node`: name and address."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = __spec__.name  # of this module, which Ray brings to each node, each time in another folder

    @ray.remote(num_cpus=0, max_retries=0, runtime_env=SEES_GPUS)
    def described(counted: int) -> dict[str, Any]:
        return importlib.import_module(name).this_node(counted, module, flags)

    ray.init(log_to_driver=False)
    asked = {}
    for node in ray.nodes():
        if node["Alive"] and (counted := int(node["Resources"].get("GPU", 0))):
            place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            asked[described.options(scheduling_strategy=place).remote(counted)] = node
    answered = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)[0] if asked else []
    answers = []
    for reference, node in asked.items():
        try:
            answer = ray.get(reference) if reference in answered else {"error": f"no answer in {seconds:g} s"}
        except Exception as error:  # whatever the node's own environment raises
            answer = {"error": " ".join([type(error).__name__, *str(error).strip().splitlines()[-1:]])}
        answers.append({**answer, "node": f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"})
    return answers


if __name__ == "__main__":
    given, of, *words = sys.argv[1:]
    print(BEGIN + json.dumps(ask_nodes(float(given), of, words)), flush=True)

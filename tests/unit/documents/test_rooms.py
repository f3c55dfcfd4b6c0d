"""Which part of the project may import which: no circle, no way back up, and no way from the package to eval."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from cpu_stack import ROOT

# Rooms and single files, each with what it may import besides itself.
PACKAGE = {
    "redaction": set(),  # which executes the table of advantages as a file
    "grading": set(),
    "math_reward": {"grading"},
    "decisions": set(),
    "advantages": set(),
    "config": {"advantages", "redaction"},
    "engine": {"decisions", "redaction"},
    "training": {"decisions", "advantages", "config"},
    "own_policies": {"config", "decisions"},
    "policies": {"config", "decisions", "own_policies"},
    "arguments": {"advantages", "config", "decisions", "policies"},
    "driver": {
        "decisions",
        "engine",
        "training",
        "advantages",
        "config",
        "own_policies",
        "policies",
        "redaction",
        "run",
    },
    "run": {"config", "redaction"},
    "migrate": {"advantages", "arguments", "config", "redaction", "run"},
    "off": {"arguments", "config", "run"},
    "unpatched": {"arguments", "config", "run"},
    "__main__": {"arguments", "config", "driver", "run"},
    "controller": {"decisions"},  # the contract's path
    "__init__": set(),
}
# Modules of decisions, each with what it may import there besides records.py. A policy imports no other policy.
DECISIONS = {
    "controller": {"group_lengths", "objectives", "straggler_model"},
    "straggler_model": {"group_lengths", "stopped_rollouts"},
    "group_parts": set(),
    "in_flight": {"group_parts"},
    "prompt_queue": {"frame"},
    "pool": {"in_flight", "prompt_queue"},
    "sorted_steps": {"step"},
    "tail_batching": {"sorted_steps", "step"},
    "best_rounds": {"dynamic_sampling", "round_seconds", "sorted_steps", "step", "tail_batching"},
    "round_seconds": {"dynamic_sampling", "engine_speed", "seen_groups", "sorted_steps", "step"},
    "engine_speed": {"least_squares"},
    "seen_groups": {"length_prediction"},
    "step": {
        "dynamic_sampling",
        "group_parts",
        "in_flight",
        "length_prediction",
        "places",
        "pool",
        "prompt_queue",
        "token_weights",
    },
    "loop": {"step"},
    "step_model": {"group_lengths", "least_squares", "objectives"},
    "planner": {
        "dynamic_sampling",
        "in_flight",
        "length_prediction",
        "objectives",
        "pool",
        "prompt_queue",
        "step",
        "step_model",
        "token_weights",
    },
}
# Rooms of eval/lib, each with what it may import besides itself and lib's own modules; these import no room.
EVAL = {
    "comparison": {"run_logs"},
    "run_report": {"run_logs"},
    "run_logs": set(),
    "simulation": set(),
    "evaluation": set(),
    "benchmarks": set(),
    "gpu_checks": {"benchmarks", "run_logs"},
}


def imported(file: Path) -> set[str]:
    """Dotted names that a file imports anywhere; of `from a import b` both a and a.b."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def arrows(folder: Path, prefix: str) -> dict[str, set[str]]:
    """Module -> modules of the same folder that it imports, both without the prefix."""
    files = {
        ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file
        for file in folder.rglob("*.py")
    }
    return {
        module: {name.removeprefix(prefix) for name in imported(file)} & files.keys() - {module}
        for module, file in files.items()
    }


@pytest.mark.parametrize("folder, prefix", [("openrlhf_sagc", "openrlhf_sagc."), ("eval", "")])
def test_no_circle(folder, prefix):
    graph = arrows(ROOT / folder, prefix)
    assert len(graph) > 20 and sum(map(len, graph.values())) > 30
    list(TopologicalSorter(graph).static_order())  # raises a CycleError


def test_rooms_of_the_package_import_what_they_may():
    for module, targets in arrows(ROOT / "openrlhf_sagc", "openrlhf_sagc.").items():
        room = module.partition(".")[0]
        rooms = {target.partition(".")[0] for target in targets} - {room}
        assert rooms <= PACKAGE[room], f"{module} imports {rooms - PACKAGE[room]}"


def test_decisions_import_records_and_what_they_may():
    graph = arrows(ROOT / "openrlhf_sagc/decisions", "openrlhf_sagc.decisions.")
    assert graph["planner"] == DECISIONS["planner"] | {"records"}
    for module, targets in graph.items():
        more = targets - DECISIONS.get(module, set()) - {"records"}
        assert not more, f"decisions/{module}.py imports {more}"


def test_commands_and_studies_import_lib_alone_and_its_rooms_what_they_may():
    graph = arrows(ROOT / "eval", "")
    commands = {module for module in graph if "." not in module} - {"lib"}
    assert commands == {"compare", "evaluate", "on_gpu", "report", "simulate", "train_kept"}
    for module, targets in graph.items():
        head, _, rest = module.partition(".")
        room = rest.partition(".")[0]
        if head == "lib":
            rooms = {target.split(".")[1] for target in targets if target.count(".") > 1} - {room}
            assert rooms <= EVAL.get(room, set()), f"{module} imports {rooms}"
        own = f"studies.{room}." if head == "studies" else "lib."
        assert all(target.startswith(("lib", own)) for target in targets), f"{module} imports {targets}"


def test_the_package_knows_nothing_of_eval():
    names = {file.stem for file in (ROOT / "eval").glob("*.py")} | {"eval", "lib", "studies"}
    for file in (ROOT / "openrlhf_sagc").rglob("*.py"):
        assert not {name.partition(".")[0] for name in imported(file)} & names, file


def test_every_module_of_the_package_has_a_test_of_its_name():
    """tests/unit mirrors the rooms; the kernel's test runs in a process of its own, the flags' share a folder."""
    folders = {"advantages/kernel": "tests/kernels"} | dict.fromkeys(
        ["__main__", "off", "unpatched", "arguments", "config/checks", "policies"], "tests/unit/flags"
    )
    names = {
        "advantages/kernel": "group_advantage",
        "config/checks": "arguments",
        "__main__": "main",
        "migrate/__main__": "main",
    }
    for file in (ROOT / "openrlhf_sagc").rglob("*.py"):
        module = str(file.relative_to(ROOT / "openrlhf_sagc").with_suffix(""))
        if file.name == "__init__.py" or module == "controller":  # the contract's path
            continue
        folder = ROOT / folders.get(module, f"tests/unit/{Path(module).parent}")
        assert list(folder.glob(f"test_{names.get(module, file.stem)}*.py")), f"no test of {module} in {folder}"


@pytest.mark.parametrize(
    "line", ["import ray", "from torch import nn", "import time", "import numpy\nx = numpy.random.rand()"]
)
def test_ruff_keeps_decisions_pure(line):
    command = [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename"]
    for room, banned in (("decisions", True), ("driver", False)):
        check = subprocess.run(
            [*command, f"openrlhf_sagc/{room}/new.py", "-"],
            input=line + "\n",
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert ("TID251" in check.stdout) == banned, check.stdout + check.stderr

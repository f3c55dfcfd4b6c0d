"""Reads the source of a reward's or agent's file, without running it: its syntax, its names, and timeouts by signals.

A reward function runs in a thread and an agent in an event loop that is none of the main thread, where Python takes no
signal handlers. A timeout by signals raises there, and often where the function takes every error for a wrong answer.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

SIGNALS = {
    "signal.alarm": "signal.alarm",
    "signal.setitimer": "signal.setitimer",
    "signal.signal": "signal.signal",
    "timeout_decorator.timeout": "timeout_decorator",
    "stopit.SignalTimeout": "stopit.SignalTimeout",
    "stopit.signal_timeoutable": "stopit.signal_timeoutable",
}
# Functions of math_verify -> the argument that is to be None, and the place it has without its name.
TIMED = {"parse": ("parsing_timeout", 4), "verify": ("timeout_seconds", 6)}
METRIC = "math_metric"  # has timeouts of its own that nothing switches off


def parse(path: str) -> ast.Module:
    """The source of a Python file, parsed.

    Raises:
        SyntaxError, ValueError: it is no Python; the message says where.
        OSError: it cannot be read.
    """
    return ast.parse(Path(path).read_bytes(), filename=path)


def names(tree: ast.Module) -> list[str]:
    """Functions and classes that the file defines for others, in their order."""
    nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return [node.name for node in nodes if not node.name.startswith("_")]


def timeouts_by_signals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what stands there) of each timeout that does not work outside of the main thread."""
    origins = _origins(tree)
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        origin, call = _origin(node, origins), called.get(id(node))
        if what := _timeout(origin, call):
            found.add((node.lineno, what))
    yield from sorted(found)


def dataclass_of_texts(tree: ast.Module) -> int:
    """The line of a dataclass that cannot be made, as OpenRLHF loads the file beside sys.modules; 0 if there is none."""
    origins = _origins(tree)
    if "__future__.annotations" not in origins.values():
        return 0
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        made = [word.func if isinstance(word, ast.Call) else word for word in decorators]
        if "dataclasses.dataclass" in {_origin(word, origins) for word in made}:
            if any(isinstance(field, ast.AnnAssign) for field in getattr(node, "body", [])):
                return node.lineno
    return 0


def _timeout(origin: str, call: ast.Call | None) -> str:
    """What a name stands for, if that is a timeout by signals; else empty."""
    if origin in SIGNALS:
        without = call and any(
            word.arg == "use_signals" and isinstance(word.value, ast.Constant) and not word.value.value
            for word in call.keywords
        )
        return "" if without else SIGNALS[origin]
    package, _, name = origin.rpartition(".")
    if package.split(".")[0] != "math_verify":
        return ""
    if name == METRIC:
        return f"math_verify's {METRIC} (use parse and verify)"
    if name not in TIMED or call is None:
        return ""
    argument, place = TIMED[name]
    given = next((word.value for word in call.keywords if word.arg == argument), None)
    off = isinstance(given, ast.Constant) and not given.value
    unknown = len(call.args) > place or any(word.arg is None for word in call.keywords)  # or a value from elsewhere
    unknown = unknown or given is not None and not isinstance(given, ast.Constant)
    return "" if off or unknown else f"math_verify's {name} without {argument}=None"


def _origins(tree: ast.Module) -> dict[str, str]:
    """Name in the file -> the dotted name that it was imported as, or is another name of."""
    origins = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                origins[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == "*":
                    origins |= {
                        name: f"{node.module}.{name}" for name in (*TIMED, METRIC, "alarm", "setitimer", "signal")
                    }
                else:
                    origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            if origin := _origin(node.value, origins):
                origins |= {target.id: origin for target in node.targets if isinstance(target, ast.Name)}
    return origins


def _origin(node: ast.expr, origins: dict[str, str]) -> str:
    """The dotted name that an expression stands for; empty if it was not imported."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, "")
    if isinstance(node, ast.Attribute):
        owner = _origin(node.value, origins)
        return f"{owner}.{node.attr}" if owner else ""
    return ""

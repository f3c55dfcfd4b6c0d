"""The reward's or agent's file, looked at before Ray starts: where it is not of use, an engine dies in its creation."""

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_sagc.config import plug_in_source
from openrlhf_sagc.config.causes import short
from openrlhf_sagc.config.plug_in_import import AGENT, REWARD
from openrlhf_sagc.config.refusal import refuse
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.redaction import shown

TIMEOUT = 120  # seconds for the imports; those of torch and vLLM alone take 20 on a slow machine
OLD_AGENT = (
    "agents since OpenRLHF 0.9 are a class AgentExecutor(AgentExecutorBase) with async execute; for an AgentInstance it is a "
    "subclass of MultiTurnAgentExecutor whose __init__ calls super().__init__(AgentInstance)"
)


def plug_in_of(args: Settings) -> tuple[str, str, str] | None:
    """(flag, file, what has to be in it) of the run; None where rewards come from elsewhere."""
    if args.train.agent_func_path:
        return "--train.agent_func_path", args.train.agent_func_path, AGENT
    urls = args.reward.remote_url or []
    urls = [urls] if isinstance(urls, str) else urls
    if urls and urls[0].endswith(".py"):
        return "--reward.remote_url", urls[0], REWARD
    return None


@contextmanager
def looked_at(flag: str, path: str, name: str) -> Iterator[None]:
    """Look at the source, and make the file's outline in a process of its own while the body runs.

    Args:
        flag: that gives the file.
        path: of the file.
        name: reward_func or AgentExecutor.

    Raises:
        SystemExit: OpenRLHF could not use the file; the message is one line. The body comes first.
    """
    tree = _parsed(flag, path)
    refuse(
        line := plug_in_source.dataclass_of_texts(tree),
        f"{flag} {shown(path, flag)} cannot be imported: line {line} makes a dataclass, which OpenRLHF cannot load here: drop `from "
        "__future__ import annotations`, or import the class from another file",
    )
    what = "rewards" if name == REWARD else "agents"
    if found := list(plug_in_source.timeouts_by_signals(tree)):
        line, timeout = found[0]
        print(
            f"openrlhf_sagc: {flag} {shown(path, flag)}: line {line} uses {timeout}: {what} run in threads, where timeouts by signals "
            "raise an error, and a function that catches it returns 0: use --reward.timeout instead"
        )
    with tempfile.TemporaryFile() as errors:
        reader, writer = os.pipe()
        command = [sys.executable, "-m", "openrlhf_sagc.config.plug_in_import", name, path, str(writer)]
        process = subprocess.Popen(
            command,
            pass_fds=[writer],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        os.close(writer)
        try:
            yield
            problem = _outcome(process, reader, errors, f"{flag} {shown(path, flag)}")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it, and what it has started
            process.wait()
            os.close(reader)
    refuse(problem, f"{flag} {shown(path, flag)} {problem}{_hint(tree, name, problem)}")


def _parsed(flag: str, path: str) -> ast.Module:
    """The file's source; the run ends with a line if there is none."""
    home = ", as ~ is not replaced: give the whole path" if path.startswith("~") else ": give the path of a file"
    refuse(not os.path.exists(path), f"{flag} {shown(path, flag)} is not there (seen from {os.getcwd()}){home}")
    refuse(not os.path.isfile(path), f"{flag} {shown(path, flag)} is not a file: give the path of a .py file")
    refuse(
        not path.endswith(".py"),
        f"{flag} {shown(path, flag)} does not end in .py: rename the file to {shown(str(Path(path).with_suffix('.py')), flag)}",
    )
    try:
        return plug_in_source.parse(path)
    except SyntaxError as error:
        refuse(True, f"{flag} {shown(path, flag)} is not Python: line {error.lineno}: {short(error.msg)}")
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        refuse(True, f"{flag} {shown(path, flag)} cannot be read: {short(str(error))}")
    raise AssertionError  # `refuse` has ended the run


def _outcome(process: subprocess.Popen, reader: int, errors, what: str) -> str:
    """Why the file cannot be used; empty if it can, or if it is not known."""
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        print(f"openrlhf_sagc: {what} was not imported within {TIMEOUT} s, so it may not work")
        return ""
    os.set_blocking(reader, False)  # what it has started may still hold the other end
    try:
        result = json.loads(os.read(reader, 1 << 16) or b"{}")
    except (BlockingIOError, ValueError):
        result = {}
    if "problem" not in result:
        errors.seek(0)
        said = errors.read()[-2000:].decode(errors="replace").strip().splitlines() or [""]
        return f"cannot be imported: its process ended with {process.returncode}: {short(said[-1])}"
    problem = short(result["problem"], 500)
    if problem and result["of_gpu"]:
        print(f"openrlhf_sagc: {what} {problem}: an engine with a GPU may import it")
        return ""
    return problem


def _hint(tree: ast.Module, name: str, problem: str) -> str:
    """What would work, where the file has no such name."""
    if problem != f"has no {name}":
        return ""
    found = plug_in_source.names(tree)
    there = f" (there are {', '.join(found[:8])})" if found else ""
    if name == REWARD:
        return f"{there}: name the function reward_func(queries, prompts, labels)"
    return f"{there}: {OLD_AGENT}"

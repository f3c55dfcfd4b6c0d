"""The Ray cluster that takes the job: its GPUs, and what each of its nodes has; preflight.py asks before the job starts.

A node's driver, compilers and attention are known on that node only. So a small job asks there, in the runtime environment that
RUNTIME_ENV_JSON gives the training, and brings these scripts along.
"""

import json
import os
import runpy
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# By its path, as in preflight.py.
_redaction = runpy.run_path(str(HERE.parent / "openrlhf_sagc/redaction.py"))
hide, without_secrets = _redaction["hide"], _redaction["without_secrets"]
BEGIN = "GPU nodes: "  # of the line that nodes.py prints
COLUMNS = {"node": "node", "cards": "GPUs", "driver": "driver", "toolchain": "compilers", "attention": "attention"}
LONGEST, MOST = 1000, 20  # characters of a text, and lines of a node
ASKED = (
    "--actor.",
    "--data.max_len",
    "--ds.",
    "--rollout.max_new_tokens",
    "--train.",
    "--vllm.",
)  # begin the flags that matter there


def gpu_count_problems(address: str, needed: int, minutes: float) -> Iterator[str]:
    """Wait until the cluster has the GPUs."""
    from ray.util.state import list_nodes

    deadline = time.monotonic() + 60 * minutes
    while True:
        try:
            alive = list_nodes(address=address, filters=[("state", "=", "ALIVE")], detail=True)
            found = int(sum(node.resources_total.get("GPU", 0) for node in alive))
            state = f"has {found} of {needed} GPUs on {len(alive)} nodes"
            if found >= needed:
                return
        except Exception as error:
            state = f"does not answer: {_shown(error)}"
        if time.monotonic() >= deadline:
            yield f"the Ray cluster at {address} {state} after {minutes:g} minutes: start Ray on the other nodes"
            return
        time.sleep(min(5.0, 60 * minutes))


def node_problems(address: str, module: str, settings: dict[str, list[str]], minutes: float) -> Iterator[str]:
    """Ask each node with GPUs what it has, print a table of the answers, and say what is wrong where.

    Args:
        address: of the dashboard.
        module: of the training; with its flags.
        minutes: for the job to begin, and as many for the nodes to answer.
    """
    try:
        answers = _answers(address, module, settings, minutes)
    except Exception as error:  # of the network, of Ray, or of what the job printed
        yield f"the Ray cluster at {address} does not say what its nodes have: {_shown(error)}"
        return
    for line in [*_table(answers), *_with_nodes(answers, "notes")]:
        print(f"train_scripts/preflight.py: {line}", flush=True)
    yield from _with_nodes(answers, "problems")


def _answers(address: str, module: str, settings: dict[str, list[str]], minutes: float) -> list[dict[str, Any]]:
    """Of each node what can be printed: texts by COLUMNS, `problems` and `notes`.

    Raises:
        RuntimeError, ValueError: there is no answer; the message says why.
    """
    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(address)
    job = _submit(client, module, settings, minutes)
    deadline = time.monotonic() + 120 * minutes
    while not (status := client.get_job_status(job)).is_terminal():
        if time.monotonic() >= deadline:
            client.stop_job(job)
            raise RuntimeError(f"job {job} has not ended in {2 * minutes:g} minutes: a larger WAIT_MINUTES")
        time.sleep(1)
    said = client.get_job_logs(job).splitlines()
    found = [line for line in said if line.startswith(BEGIN)]
    if not found:
        why = [client.get_job_info(job).message or "", *said[-1:]]
        raise RuntimeError(f"job {job} {status.value.lower()}: {' '.join(why)}")
    return [_checked(answer) for answer in json.loads(found[-1].removeprefix(BEGIN))]


def _submit(client, module: str, settings: dict[str, list[str]], minutes: float) -> str:
    """The job's name."""
    environment = _runtime_env()
    flags = [word for name, words in settings.items() if name.startswith(ASKED) for word in (name, *words)]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "asked_of_nodes")
        for scripts in (
            HERE,
            HERE.parent / "openrlhf_sagc",
        ):  # beside each other: scripts run the package's files by path
            shutil.copytree(scripts, package / scripts.name, ignore=shutil.ignore_patterns("__pycache__", "trees"))
        environment["py_modules"] = [*environment.get("py_modules", []), str(package)]
        command = ["python3", "-m", f"{package.name}.{HERE.name}.nodes", f"{60 * minutes:g}", module, *flags]
        return client.submit_job(entrypoint=shlex.join(command), runtime_env=environment)


def _runtime_env() -> dict[str, Any]:
    """That of the training.

    Raises:
        ValueError: RUNTIME_ENV_JSON holds something else.
    """
    try:
        given = json.loads(os.environ.get("RUNTIME_ENV_JSON") or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict) or not isinstance(given.get("env_vars") or {}, dict):
        raise ValueError("RUNTIME_ENV_JSON is no JSON object, or its env_vars is none")
    return given


def _checked(answer: Any) -> dict[str, Any]:
    """What can be printed of a node's answer, which may be anything."""
    given = answer if isinstance(answer, dict) else {"error": "its answer is no JSON object"}
    checked: dict[str, Any] = {name: _shown(given.get(name, "-")) for name in COLUMNS}
    for name in ("problems", "notes"):
        lines = given.get(name, [])
        checked[name] = [_shown(line) for line in lines[:MOST]] if isinstance(lines, list) else []
    if "error" in given:
        checked["problems"].insert(0, f"it does not say what it has: {_shown(given['error'])}")
    return checked


def _shown(text: Any) -> str:
    """One line of LONGEST characters at most, without secrets, also of RUNTIME_ENV_JSON."""
    hide(["--runtime-env-json", os.environ.get("RUNTIME_ENV_JSON", "")])
    return without_secrets(_in_one_line(text))[:LONGEST]


def _in_one_line(text: Any) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(text)).split())


def _table(answers: list[dict[str, Any]]) -> Iterator[str]:
    rows = [COLUMNS, *answers]
    widths = {name: max(len(row[name]) for row in rows) for name in COLUMNS}
    for row in rows:
        yield "  ".join(row[name].ljust(width) for name, width in widths.items()).rstrip()


def _with_nodes(answers: list[dict[str, Any]], name: str) -> Iterator[str]:
    """Each line of these once, behind the nodes that say it."""
    nodes: dict[str, list[str]] = {}
    for answer in answers:
        for line in answer[name]:
            nodes.setdefault(line, []).append(answer["node"])
    yield from (f"{', '.join(named)}: {line}" for line, named in nodes.items())

"""Runs of `package_loop.py`."""

import json
import subprocess

from cpu_stack import ROOT, deepspeed_environment


def run_package_loop(python, folder, cases: dict[int, dict[str, dict]]) -> dict[int, dict[str, dict]]:
    """What the first rank has after each case, by number of ranks and name."""
    environment = deepspeed_environment(ROOT, ROOT / "build/cpu-patched")
    request = json.dumps({"folder": str(folder), **{str(ranks): cases[ranks] for ranks in (1, 2)}})
    command = [python, ROOT / "tests/helpers/package_loop.py"]
    ended = subprocess.run(command, input=request, env=environment, capture_output=True, text=True)
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    assert ended.returncode == 0, ended.stderr[-3000:] + logs
    return {ranks: json.loads((folder / f"results-{ranks}.json").read_text()) for ranks in (1, 2)}

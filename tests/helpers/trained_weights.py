"""Runs of `package_loop.py`, and whether two of them have trained the same."""

import json
import os
import subprocess

import torch
from cpu_stack import ROOT


def run_package_loop(python, folder, cases: dict[int, dict[str, dict]]) -> dict[int, dict[str, dict]]:
    """What the first rank has after each case, by number of ranks and name."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/build/cpu-patched"}
    request = json.dumps({"folder": str(folder), **{str(ranks): cases[ranks] for ranks in (1, 2)}})
    command = [python, ROOT / "tests/helpers/package_loop.py"]
    ended = subprocess.run(command, input=request, env=environment, capture_output=True, text=True)
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    assert ended.returncode == 0, ended.stderr[-3000:] + logs
    return {ranks: json.loads((folder / f"results-{ranks}.json").read_text()) for ranks in (1, 2)}


def assert_same_training(ours: dict, theirs: dict, steps: int) -> None:
    """Weights and Adam's moments agree to 1e-6 of the largest, after so many optimizer steps of both."""
    assert ours["actor"]["optimizer_steps"] == theirs["actor"]["optimizer_steps"] == steps
    for name in ("weights", "exp_avg", "exp_avg_sq"):
        found, expected = torch.tensor(ours["actor"][name]), torch.tensor(theirs["actor"][name])
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * expected.abs().max().item())

"""Runs of `package_loop.py`, and whether two of them have trained the same."""

import json
import os
import subprocess

import torch
from cpu_stack import ROOT

COMPARED = ("weights", "exp_avg", "exp_avg_sq")


def run_package_loop(python, folder, cases: dict[int, dict[str, dict]]) -> dict[int, dict[str, dict]]:
    """What the first rank has after each case, by number of ranks and name."""
    # With the ninja that has compiled DeepSpeed's own optimizers.
    environment = {
        **os.environ,
        "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT}/build/cpu-patched",
    }
    request = json.dumps({"folder": str(folder), **{str(ranks): cases[ranks] for ranks in (1, 2)}})
    command = [python, ROOT / "tests/helpers/package_loop.py"]
    ended = subprocess.run(command, input=request, env=environment, capture_output=True, text=True)
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    assert ended.returncode == 0, ended.stderr[-3000:] + logs
    return {ranks: json.loads((folder / f"results-{ranks}.json").read_text()) for ranks in (1, 2)}


def rounding(summands: int) -> float:
    """How far apart sums of so many float32 numbers in two orders are, as a share of the largest sum.

    An addition is off by eps / 2 at most, to either side, so that a sum is off by about eps / 2 * sqrt(summands); both are.
    """
    return torch.finfo(torch.float32).eps * summands**0.5


STEP_ROUNDING = rounding(32 * 24)  # tokens of the largest step: a gradient is a sum over them
AMPLIFIED = 200  # Adam divides a gradient's rounding by the gradient: so, where that is 0.5 % of the largest


def assert_same_training(ours: dict, theirs: dict, steps: int, rate: float) -> None:
    """Weights and Adam's moments agree to the rounding of the gradients, after so many optimizer steps of both.

    A square doubles the rounding. A step moves a weight by up to the learning rate, of which Adam amplifies the rounding,
    and rounds the weight.
    """
    assert ours["actor"]["optimizer_steps"] == theirs["actor"]["optimizer_steps"] == steps
    run = {name: [torch.tensor(case["actor"][name]) for case in (ours, theirs)] for name in COMPARED}
    largest = {name: expected.abs().max().item() for name, (_, expected) in run.items()}
    allowed = {
        "weights": steps * (STEP_ROUNDING * AMPLIFIED * rate + torch.finfo(torch.float32).eps * largest["weights"]),
        "exp_avg": STEP_ROUNDING * largest["exp_avg"],
        "exp_avg_sq": 2 * STEP_ROUNDING * largest["exp_avg_sq"],
    }
    for name, (found, expected) in run.items():
        torch.testing.assert_close(found, expected, rtol=0, atol=allowed[name], msg=lambda text: f"{name}: {text}")

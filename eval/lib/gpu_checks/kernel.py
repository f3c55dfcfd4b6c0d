"""After the ten checks: the advantage kernel's tests and times, and two steps of a policy. They need torch and triton alone."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from lib.gpu_checks.outcomes import FAIL, NotHere, Outcome, measured
from lib.gpu_checks.processes import ROOT

TESTS = ("tests/kernels/test_benchmark.py", "tests/kernels/test_group_advantage.py")
RESULTS = ROOT / "eval/studies/overhead"


def tests(node) -> Outcome:
    """The kernel against float64 arithmetic; a dry run takes the tests of one variant."""
    if importlib.util.find_spec("pytest") is None:
        raise NotHere("pytest is not installed: pip install pytest")
    files = [str(ROOT / file) for file in TESTS] + ["-k", "parity and lengths"] * node.dry_run
    # Not the configuration of the other tests, which need the whole stack.
    options = ["-q", "-c", os.devnull, "--rootdir", str(ROOT / "tests/kernels"), "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "eval"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", *options, "--confcutdir", str(ROOT / "tests/kernels"), *files]
    run = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    print(run.stdout, flush=True)
    passed = re.search(r"(\d+) passed", run.stdout)
    if run.returncode:
        return Outcome(FAIL, reason="the kernel's tests fail, so it is not timed")
    return measured(int(passed[1]) if passed else 0, "tests passed", least=1)


def packed(node) -> Outcome:
    """A step of packed samples of a 1.5B model, with and without the forward pass for old log-probabilities."""
    from lib.benchmarks import packed as benchmark

    return step(benchmark, RESULTS / "packed", node.dry_run)


def buckets(node) -> Outcome:
    """A step in buckets against the step at once, with advantages from the kernel."""
    from lib.benchmarks import buckets as benchmark

    return step(benchmark, RESULTS / "buckets", node.dry_run)


def step(benchmark, folder: Path, dry_run: bool) -> Outcome:
    """A module's step in its ways; the table is written if their gradients are the same."""
    import torch
    from lib.tables import show

    device, shape = ("cpu", benchmark.CPU) if dry_run else ("cuda", benchmark.GPU)
    table = benchmark.measure(device, shape, repeats=1 if dry_run else 3)
    name = "a CPU, in small" if dry_run else torch.cuda.get_device_name()
    show(f"{benchmark.TITLE}, on {name}: difference of the gradient, and seconds", table)
    worst = float("nan") if table.difference.isna().any() else table.difference.max()
    outcome = measured(worst, "of the gradient", most=shape.tolerance)
    if outcome.status == FAIL or dry_run:
        return outcome
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{name.replace(' ', '-')}.csv", index=False, float_format="%.6g")
    return outcome


def times(node) -> Outcome:
    """The kernel's times against eager torch and torch.compile."""
    from lib.benchmarks import gpu
    from lib.tables import show

    table = gpu.run(RESULTS / "group_advantage", show)
    if table is None:
        raise NotHere("there is no GPU: not measured")
    eager = table[table.way == "eager torch"].kernel_is_faster_by
    return measured(eager.min(), "times as fast as eager torch, at least", least=1)

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["--samples", "24", "--tokens", "256", "--micro-batch", "16"]


def run_benchmark(tree, results, before="pass"):
    """The benchmark on OpenRLHF of build/TREE in a process of its own, after the statement `before`."""
    script = (
        "import sys; sys.path.insert(0, 'eval'); import benchmark_group_advantage as benchmark\n"
        f"{before}\nbenchmark.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / tree), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", script, *SMALL, "--results", str(results)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_figures_are_measured_and_kept(tmp_path):
    run = run_benchmark("cpu-base", tmp_path)
    assert run.returncode == 0, run.stderr
    assert "GPU: not measured" in run.stdout
    times = pd.read_csv(tmp_path / "cpu.csv")
    assert times.path.tolist() == 2 * ["OpenRLHF", "OpenRLHF, patched", "closed form"]
    assert times.kl_in_reward.tolist() == 3 * [False] + 3 * [True]
    assert (times.seconds > 0).all() and times.same_bits.all()
    sent = pd.read_csv(tmp_path / "bytes.csv").set_index("sent").bytes_per_token
    # Advantages and returns are 8 bytes a token, the KL is 4; pickle adds some for each field.
    assert sent["OpenRLHF"] - sent["a reward a sample"] == pytest.approx(8, abs=0.5)
    assert sent["a reward a sample, and the KL"] - sent["a reward a sample"] == pytest.approx(4, abs=0.5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bytes.csv", "cpu.csv"]


def test_no_speed_up_is_reported_for_another_result(tmp_path):
    wrong = "closed_form = benchmark.closed_form; benchmark.closed_form = lambda *a: closed_form(*a) + 2e-5"
    run = run_benchmark("cpu-base", tmp_path, before=wrong)
    assert run.returncode == 1 and "parity is red: no speed-up is reported" in run.stderr
    assert "ratio" not in run.stdout and not list(tmp_path.iterdir())


def test_the_patched_tree_is_refused(tmp_path):
    run = run_benchmark("cpu-patched", tmp_path)
    assert run.returncode == 1 and "set PYTHONPATH=build/cpu-base" in run.stderr

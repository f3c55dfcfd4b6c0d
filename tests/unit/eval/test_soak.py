"""The study of growth on a made-up run: what grows is found, whatever else the run's processes do."""

import sys

import numpy as np
import pandas as pd
import pytest
from studies.soak import run as soak

LEAKING = """
import sys, time
kept = []
for step in range(1, 10**6):
    kept.append(bytearray(b"x" * {size}))
    print(f"x.py:1] Global step {step}: {{", flush=True)
    time.sleep(0.03)
"""


@pytest.fixture
def run_soak(study, small, tmp_path):
    """run_soak(sizes) -> output; a run adds so many bytes a step."""

    def run(capsys, sizes, *words):
        (tmp_path / "task/model").mkdir(parents=True, exist_ok=True)

        def command(tree, task, output, flags):
            script = output / "leaking.py"
            script.write_text(LEAKING.replace("{size}", str(sizes[tree])))
            return [sys.executable, script]

        small("soak.run", train_command=command, SAMPLE_SECONDS=0.1)
        study("soak", "--task", tmp_path / "task", "--steps", 100, *words)
        return capsys.readouterr().out

    return run


def test_what_grows_is_named_and_unpatched_stands_beside_it(run_soak, capsys, tmp_path):
    with pytest.raises(SystemExit, match=r"grows by more than 0.02 MB a step: leaking.py \d+$"):
        run_soak(capsys, {"cpu-patched": 500_000, "cpu-base": 10})
    tables = capsys.readouterr().out
    assert "ours: " in tables and "unpatched: " in tables
    found = soak.growth(pd.read_csv(tmp_path / "out/samples.csv").query("run == 'ours'"))
    assert found["MB a step"].iloc[0] == pytest.approx(0.5, rel=0.3)


def test_a_run_that_does_not_grow_passes(run_soak, capsys):
    assert "unpatched" not in run_soak(capsys, {"cpu-patched": 10}, "--unpatched_minutes", "0")


def test_a_run_that_ends_early_is_one_line(run_soak, capsys):
    with pytest.raises(SystemExit, match="^eval/studies soak: the run ours ended after 0 steps, see .*train.log$"):
        run_soak(capsys, {"cpu-patched": "1 / 0"})


def samples_of(**processes):
    """Of 100 steps: process -> MB at each, None where it does not run."""
    rows = [
        (step, name, megabytes(step))
        for name, megabytes in processes.items()
        for step in range(0, 100, 2)
        if megabytes(step) is not None
    ]
    return pd.DataFrame(rows, columns=["step", "process", "MB"])


def test_the_last_three_quarters_of_whole_lives_count():
    samples = samples_of(
        starts=lambda step: min(step, 20) * 50.0,  # loads its model, and is flat then
        grows=lambda step: 500 + 0.05 * step,
        helper=lambda step: 9.0 * step if step > 60 else None,
        ended=lambda step: 9.0 * step if step < 60 else None,
        gcs_server=lambda step: 2.0 * step,
        **{"VLLM::EngineCore 7": lambda step: 3.0 * step},
    )
    found = soak.growth(samples)
    assert found["process"].tolist() == ["VLLM::EngineCore 7", "gcs_server", "grows", "starts"]
    assert found["MB a step"].tolist() == pytest.approx([3.0, 2.0, 0.05, 0.0], abs=1e-9)
    assert soak.too_fast(found)["process"].tolist() == ["grows"]


def test_few_steps_say_nothing():
    with pytest.raises(ValueError, match="^2 steps are too few"):
        soak.growth(pd.DataFrame({"step": np.arange(3), "process": "one", "MB": 1.0}))


@pytest.mark.parametrize(
    "command, role",
    [
        (["ray::RolloutRayActor.generate_responses"], "ray::RolloutRayActor"),
        (["ray::PolicyModelActor", ""], "ray::PolicyModelActor"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["/x/ray/core/src/ray/gcs/gcs_server", "--log_dir=/tmp"], "gcs_server"),
        (["/x/bin/python", "-u", "/x/ray/_private/log_monitor.py", "--a=b"], "log_monitor.py"),
        (["bash", "train_scripts/on_cpu.sh", "cpu-patched"], "on_cpu.sh"),
        ([], "ended"),
    ],
)
def test_a_process_is_named_by_what_it_does(command, role):
    assert soak.role_of(command) == role

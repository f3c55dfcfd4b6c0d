import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from cpu_stack import ROOT

pytestmark = pytest.mark.stack
SEED = 7


def test_quickstart_trains_reports_and_keeps_its_warm_start(monkeypatch, run_script):
    """A few steps of it; whether the reward rises is for people to see, and for each release."""
    folder = ROOT / "build" / "quickstart" / f"seed-{SEED}"
    shutil.rmtree(folder, ignore_errors=True)
    monkeypatch.delenv("WARM_PYTHON", raising=False)  # as people start it
    for name, value in {"SEED": SEED, "WARM_START_STEPS": 350, "PROMPTS": 96, "HELDOUT": 8}.items():
        monkeypatch.setenv(name, str(value))
    code, output = run_script(["bash", ROOT / "train_scripts" / "quickstart.sh"])
    assert code == 0, output[-5000:]
    assert " left)" in output and " s left: step " in output
    assert "warm start, loss" in (ROOT / "build/beside.log").read_text()
    report = json.loads((folder / "report.json").read_text())
    heldout = json.loads((folder / "heldout.json").read_text())
    assert [Path(model["model"]).name for model in heldout["models"]] == ["model", "trained"]
    assert heldout["problems"] == 8 and report["steps"] >= 3
    for when, model in zip(("before", "after"), heldout["models"]):
        assert report[f"heldout_reward_{when}"] == model["figures"]["reward"]["value"]
    responses = pd.read_json(folder / "responses.jsonl", lines=True)
    assert set(responses["model"]) == {str(folder / "model"), str(folder / "trained")}
    assert str(folder / "report.html") in output and os.path.getsize(folder / "report.html") > 50_000
    assert report["max_straggler_rate"] == 0.3 and (folder / "control.svg").exists()

    warm_start = (folder / "model" / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setenv("PROMPTS", "1")  # fewer than a step takes
    code, output = run_script(["bash", ROOT / "train_scripts" / "quickstart.sh"])
    assert code == 1 and "the training failed, see" in output
    assert (folder / "model" / "model.safetensors").stat().st_mtime_ns == warm_start

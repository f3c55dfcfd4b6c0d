import json
import os
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
SEED = 7


def test_quickstart_trains_a_better_model_within_the_limit_and_reports_it(monkeypatch, run_command):
    folder = ROOT / "build" / "quickstart" / f"seed-{SEED}"
    shutil.rmtree(folder, ignore_errors=True)
    monkeypatch.setenv("SEED", str(SEED))
    code, output = run_command(["bash", ROOT / "train_scripts" / "quickstart.sh"], timeout=1500)
    assert code == 0, output[-5000:]
    report = json.loads((folder / "report.json").read_text())
    assert report["heldout_reward_after"] > report["heldout_reward_before"] + 0.1
    assert report["heldout_solved_after"] > report["heldout_solved_before"]
    assert report["train_reward_last"] > report["train_reward_first"] + 0.1
    assert report["straggler_rate"] <= report["max_straggler_rate"] + 0.05
    assert 4 < report["group_size_mean"] < 32
    for plot in ("learning.png", "control.png"):
        assert str(folder / plot) in output
        assert os.path.getsize(folder / plot) > 10_000

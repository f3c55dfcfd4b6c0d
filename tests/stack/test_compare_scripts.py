"""compare.sh trains a launch script as two arms on the real stack, in turns, and reports them."""

import json

import pytest
from cpu_stack import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]


@pytest.mark.xdist_group("smoke")  # they make one task
def test_two_arms_take_turns_by_checkpoints(task, run_script, monkeypatch, tmp_path):
    monkeypatch.setenv("TASK", str(task))
    output = tmp_path / "out"
    command = [
        "bash",
        ROOT / "train_scripts/compare.sh",
        "dapo_qwen2.5_1.5b.sh",
        "--smoke",
        "--arms",
        "unpatched",
        "recommended",
    ]
    code, printed = run_script([*command, "--steps", "4", "--turns", "2", "--output", output])
    assert code == 0, printed[-5000:]
    report = json.loads((output / "comparison.json").read_text())
    assert [row["policy"] for row in report["policies"]] == ["unpatched", "recommended"]
    assert "cannot tell" in report["verdicts"][0] and "took turns by checkpoints" in (output / "REPORT.md").read_text()
    for arm, module in (("unpatched", "openrlhf_sagc.unpatched"), ("recommended", "openrlhf_sagc")):
        starts = [json.loads(line) for line in (output / arm / "run.jsonl").read_text().splitlines()]
        assert len(starts) == 2 and all(start["command"].startswith(f"python -m {module} ") for start in starts)
        assert starts[1]["flags"]["ckpt.load_enable"] and "Global step 3" in (output / arm / "run.log").read_text()

"""Payloads on every way in: responses, labels and files of responses."""

import json
import subprocess
import sys

from cpu_stack import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from payloads import GOLDS, code_that_marks, payload, payloads

from openrlhf_sagc.math_reward import reward_func


def test_responses_and_labels(tmp_path):
    """Nothing of them runs, none is right, and the next answers are graded as ever."""
    marker = tmp_path / "marker"

    @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(payloads(code_that_marks(marker)), st.sampled_from(GOLDS), st.booleans())
    def graded(text, gold, is_label):
        answer, label = (gold, text) if is_label else (text, gold)
        queries = [rf"\boxed{{{answer}}}", r"\boxed{\frac{10}{2}}", r"\boxed{\frac{10}{3}}"]
        assert reward_func(queries, [""] * 3, [label, "5", "5"])["rewards"].tolist() == [0, 1, 0]
        assert not marker.exists()

    graded()


def test_a_file_of_responses(tmp_path):
    marker = tmp_path / "marker"
    code = code_that_marks(marker)
    texts = [payload(code), payload(code, ("vec", "dot"), place="[0,X]"), rf"\operatorname{{{code}}}(2)"]
    rows = [
        {"prompt": "?", "label": gold, "responses": [rf"\boxed{{{text}}}" for text in texts]} for gold in GOLDS[:3]
    ]
    rows += [{"prompt": "?", "label": text, "responses": [r"\boxed{34}", r"\boxed{\sqrt{2}}", "?"]} for text in texts]
    (tmp_path / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "eval/evaluate.py", "--from_responses", str(tmp_path / "responses.jsonl")]
    run = subprocess.run([*command, "--json", str(tmp_path / "out.json")], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (model,) = json.loads((tmp_path / "out.json").read_text())["models"]
    assert model["figures"]["pass@1"]["value"] == 0 and not marker.exists()

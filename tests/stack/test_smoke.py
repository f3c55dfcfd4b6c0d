"""A launch script trains on the real stack: the very script in its own shape, with the sizes of smoke.sh.

The asynchronous one has modes without another test. The others are trained in turns.
"""

import re

import pytest
from cpu_stack import ROOT
from real_runs import logged_steps, why_it_ended

pytestmark = pytest.mark.stack
IN_TURNS = pytest.mark.in_turns
STEPS = 10
RUNS = [
    pytest.param("dapo_qwen2.5_1.5b.sh", "recommended", 1, marks=IN_TURNS),
    pytest.param("dapo_qwen2.5_7b.sh", "off", 1, marks=IN_TURNS),
    pytest.param("dapo_qwen2.5_7b_all.sh", "all", 1, marks=IN_TURNS),
    pytest.param("dapo_qwen2.5_32b_multinode.sh", "recommended", 2, marks=IN_TURNS),
    ("dapo_async_partial_rollout.sh", "recommended", 1),
    pytest.param("multi_turn_agent.sh", "all", 1, marks=IN_TURNS),
]


@pytest.mark.xdist_group("smoke")  # two of them may write to one folder
@pytest.mark.parametrize(("script", "sagc", "ranks"), RUNS)
def test_smoke(task, run_script, monkeypatch, script, sagc, ranks):
    """Ranks: workers of the engine, and as many actors; they need smoke.sh's own task, whose model they can share."""
    if ranks == 1:
        monkeypatch.setenv("TASK", str(task))
    monkeypatch.setenv("TENSOR_PARALLEL", str(ranks))
    monkeypatch.setenv("STEPS", str(STEPS))
    monkeypatch.setenv("SAGC", sagc)
    code, output = run_script(["bash", ROOT / "train_scripts" / "smoke.sh", script])
    assert code == 0 and f"{script} has trained, evaluated and saved" in output, why_it_ended(output)
    changed = set(re.findall(r"besides sizes, the smoke form changes (--\S+)", output))
    assert {"--ds.attn_implementation", "--vllm.sync_backend"} <= changed and len(changed) <= 4
    folder = ROOT / "build" / "smoke" / script.removesuffix(".sh")
    steps = logged_steps(output)
    assert STEPS / 2 <= len(steps) <= 2 * STEPS
    assert re.search(r"eval_\w+_pass1", output), "no evaluation"
    assert (folder / "config.json").exists() and list((folder / "checkpoints").glob("*_hf/config.json"))
    assert list((folder / "tensorboard" / "run").iterdir())

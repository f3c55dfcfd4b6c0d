"""The steps of a run, trained again from their files, give its weights bit for bit."""

import pytest
from cpu_stack import ROOT
from real_runs import training, why_it_ended
from safetensors.torch import load_file

pytestmark = pytest.mark.stack
SAME = ["reward", "return", "policy_loss", "actor_grad_norm", "actor_lr", "rollout/num_samples", "sagc/group_size"]


def test_kept_steps_give_the_weights_of_their_run_bit_for_bit(train, task, tmp_path, run_command, python):
    """Two steps of two optimizer steps; the runs that train them again start no engine."""
    flags = {"data__max_samples": 16, "train__batch_size": 32, "actor__lr_scheduler": "linear"}
    kept = train("cpu-patched", **flags, train__rollouts_to=tmp_path / "kept")
    evaluation = {"eval__dataset": task / "prompts.jsonl", "eval__steps": 1}
    again = train("cpu-patched", **flags, **evaluation, train__rollouts_from=tmp_path / "kept")
    assert len(kept.scalars) == len(again.scalars) == 2
    assert again.scalars[SAME].equals(kept.scalars[SAME])
    assert "RolloutRayActor" in kept.output and "RolloutRayActor" not in again.output
    assert not any("eval" in name for name in again.scalars)
    models = (task / "model", kept.model, again.model)
    first, trained, retrained = (load_file(folder / "model.safetensors") for folder in models)
    assert all(trained[name].equal(retrained[name]) for name in first)
    assert not all(trained[name].equal(first[name]) for name in first)

    on_cpu = ["bash", ROOT / "train_scripts/on_cpu.sh", "cpu-base", python, ROOT / "eval/train_kept.py"]
    code, output = run_command(training(task, *on_cpu, "--output", tmp_path / "both", tmp_path / "kept", **flags))
    assert code == 0 and "largest difference of a weight 0: bit-identical" in output, why_it_ended(output)
    both = [load_file(tmp_path / "both" / kind / "model.safetensors") for kind in ("base", "patched")]
    assert all(not model[name].equal(first[name]) for model in both for name in first if "proj" in name)

"""A finished run that has lost its model saves it from its last checkpoint: the moving average too, which it had saved."""

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]


def test_a_finished_run_saves_its_model_again_as_it_was(train, tmp_path):
    """Six steps. The second run has a folder of its own for the model, so that there is none."""
    flags = {"ckpt__path": tmp_path / "checkpoints", "ckpt__save_steps": 3, "train__enable_ema": True}
    finished = train("cpu-patched", **flags)
    again = train("cpu-patched", ckpt__load_enable=True, fails=True, code=0, **flags)
    assert again.scalars.empty and "nothing is left to train after step 6: 1 episode(s) are over" in again.output
    models = [(run.model / "model.safetensors").read_bytes() for run in (finished, again)]
    assert models[0] == models[1]

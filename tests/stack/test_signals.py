"""A run that gets SIGTERM in the middle of its steps saves the last one that is finished, says so, and goes on from it."""

import re
from types import SimpleNamespace

import psutil
import pytest

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]
STEPS = 6  # of the prompts
ASYNC = {"train__async_enable": True, "train__partial_rollout_enable": True}


@pytest.mark.parametrize("mode", [{}, ASYNC], ids=["sync", "async"])
def test_a_run_that_is_ended_goes_on_from_its_last_finished_step(train, tmp_path, mode):
    """Without --ckpt.save_steps, so that OpenRLHF itself would save nothing."""
    flags = {"ckpt__path": tmp_path / "checkpoints", "ckpt__grace_seconds": 1000, **mode}
    folder = tmp_path / "checkpoints" / "_actor"

    def command(output):
        """The run's own process, which the lock in its folder names; it gets SIGTERM instead of SIGKILL."""
        (lock,) = tmp_path.glob("*-model/openrlhf_sagc.lock")
        return SimpleNamespace(kill=psutil.Process(int(lock.read_text().split()[1])).terminate)

    ended = train("cpu-patched", kill_at="Global step 2:", victim=command, code=143, **flags)
    step = int((folder / "latest").read_text().removeprefix("global_step"))
    assert 2 <= step < STEPS
    assert re.findall(r"^openrlhf_sagc: ended by .*", ended.output, re.MULTILINE) == [
        f"openrlhf_sagc: ended by SIGTERM: the last good checkpoint is {folder}/global_step{step} (step {step}): start again with "
        "--ckpt.load_enable to go on from it"
    ]
    resumed = train("cpu-patched", ckpt__load_enable=True, **flags)
    assert resumed.scalars.index.tolist() == list(range(step + 1, STEPS + 1))

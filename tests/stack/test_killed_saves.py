"""A run that is killed in the middle of a checkpoint's file goes on from the newest checkpoint that is whole.

An asynchronous run each time, or the first KILLED_SAVES of RUNS.
"""

import json
import os
import select
import time
from contextlib import suppress

import pytest
from real_runs import AGENTS, TIMEOUT, actor_process

pytestmark = [pytest.mark.stack, pytest.mark.in_turns]
WHOLE, LAST = 3, 6  # steps: the last that is whole when the run is killed, and that of the last of the prompts
ASYNC, PARTIAL = {"train__async_enable": True}, {"train__partial_rollout_enable": True}
MODEL, OPTIMIZER = "*model_states.pt", "*optim_states.pt"  # of the two files that it is killed in
RUNS = [(OPTIMIZER, ASYNC), (MODEL, {}), (MODEL, ASYNC | PARTIAL)]


def wait_until(happened, what: str):
    """What `happened()` gives, once that is something."""
    deadline = time.monotonic() + TIMEOUT
    while not (result := happened()):
        assert time.monotonic() < deadline, f"waited {TIMEOUT} s for {what}"
        time.sleep(0.05)
    return result


@pytest.mark.parametrize("file, mode", RUNS[: int(os.environ.get("KILLED_SAVES", 1))])
def test_a_run_killed_while_it_saves_goes_on_from_the_newest_whole_checkpoint(
    train, tmp_path, monkeypatch, file, mode
):
    """Metrics fall, so that the newest checkpoint is the worst one."""
    monkeypatch.setenv("FALLING", str(tmp_path / "evaluations"))
    prompts = tmp_path / "evaluation.jsonl"
    prompts.write_text(json.dumps({"prompt": "1 + 1 =", "label": "evaluation"}) + "\n")
    folder = tmp_path / "checkpoints" / "_actor"
    flags = {
        "reward__remote_url": AGENTS / "falling_reward.py",
        "rollout__max_new_tokens": 16,
        "eval__dataset": prompts,
        "eval__steps": 1,
        "eval__n_samples_per_prompt": 1,
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 1,
        "ckpt__max_num": 2,
        "ckpt__load_enable": True,
        **mode,
    }

    def kept():
        return {path.name for path in folder.iterdir() if path.is_dir()}

    def metric(step):
        path = folder / f"global_step{step}" / "metric.json"
        return path.exists() and json.loads(path.read_text())["metric_value"]

    def in_time():
        assert not metric(WHOLE + 1), f"the checkpoint of step {WHOLE + 1} was whole before the run was killed in it"
        return True

    def while_it_saves(output):
        """The policy actor, once it writes a file of the next checkpoint, here a pipe that nobody empties."""
        two = {"best_global_step1", "global_step1", f"global_step{WHOLE}"}
        wait_until(lambda: in_time() and metric(WHOLE) and kept() == two, f"{two} in {folder}")
        (before,) = (folder / f"global_step{WHOLE}").glob(file)
        pipe = folder / f"global_step{WHOLE + 1}" / before.name
        readers = []

        def begun():
            in_time()
            if not pipe.exists():  # the rotation of the last save may not be over, and take the folder away
                with suppress(FileNotFoundError):
                    pipe.parent.mkdir(exist_ok=True)
                    os.mkfifo(pipe)
                    readers[:] = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)]
            return select.select(readers, [], [], 0)[0] and os.read(readers[0], 1000)

        written = wait_until(begun, f"{pipe} to be written")
        pipe.unlink()
        pipe.write_bytes(written)
        return actor_process(output, "PolicyModelActor")

    train("cpu-patched", kill_at=f"Global step {WHOLE}:", victim=while_it_saves, **flags)
    assert kept() == {"best_global_step1", "global_step1", f"global_step{WHOLE}", f"global_step{WHOLE + 1}"}
    assert (folder / "latest").read_text() == f"global_step{WHOLE}" and not metric(WHOLE + 1)

    resumed = train("cpu-patched", **flags).scalars
    assert resumed.index.tolist() == list(range(WHOLE + 1, LAST + 1))
    assert kept() == {"best_global_step1", "global_step1", f"global_step{LAST}"}
    assert (folder / "latest").read_text() == f"global_step{LAST}"
    evaluations = (tmp_path / "evaluations").stat().st_size  # of each step, and again of the one that was lost
    assert (metric(1), evaluations, metric(LAST)) == (1, LAST + 1, pytest.approx(1 / evaluations))

"""What a run keeps of itself."""

import json
import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
from up_to_ray import RayStarted

from openrlhf_sagc.run import kept
from openrlhf_sagc.run.trees import Tree

URL = "https://user:secret-word@rewards.example/v1?key=secret-word"


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """keep(**flags) -> the starts that run.jsonl has behind one more."""
    monkeypatch.setattr(kept, "digest", lambda folder: "0123")

    def run(**flags):
        sections = {"ckpt": SimpleNamespace(output_dir=str(tmp_path / "out")), **flags}
        kept.keep_run(
            "openrlhf_sagc", ["--reward.remote_url", URL], SimpleNamespace(**sections), Tree("base", tmp_path)
        )
        return [json.loads(line) for line in (tmp_path / "out/run.jsonl").read_text().splitlines()]

    return run


def test_a_start_is_a_line_with_command_flags_and_versions(keep):
    wandb = SimpleNamespace(key="secret-word", org=None)
    starts = keep(
        reward=SimpleNamespace(remote_url=[URL]),
        logger=SimpleNamespace(wandb=wandb),
        x=SimpleNamespace(y=(1, 0.5, True)),
    )
    assert len(starts) == 1 and len(keep()) == 2
    flags = starts[0]["flags"]
    assert flags["reward.remote_url"] == ["***"] and flags["logger.wandb.key"] == "***"
    assert flags["x.y"] == [1, 0.5, True] and flags["logger.wandb.org"] is None
    assert "secret-word" not in json.dumps(flags)
    assert shlex.split(starts[0]["command"]) == ["python", "-m", "openrlhf_sagc", "--reward.remote_url", URL]
    assert starts[0]["versions"].keys() == {"openrlhf", "openrlhf_sagc", "python", "driver", *kept.LIBRARIES}
    assert starts[0]["versions"]["openrlhf"] == "0.11.2 base 0123"


def test_variables_of_a_launch_script_are_kept_too(keep, monkeypatch):
    assert "launch" not in keep()[-1]
    monkeypatch.setenv(kept.LAUNCHED, f"SCRIPT=dapo,SAGC=off,GROUP_SIZES=4 8,X={URL}")
    launch = {"SCRIPT": "dapo", "SAGC": "off", "GROUP_SIZES": "4 8", "X": "***"}
    assert keep()[-1]["launch"] == launch


def test_its_user_alone_reads_the_command(keep, tmp_path, monkeypatch):
    modes, opened = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777: modes.append(mode) or opened(path, flags, mode))
    monkeypatch.setattr(os, "fchmod", lambda *_: pytest.fail("it is made so"))
    keep()
    assert modes == [0o600] and (tmp_path / "out/run.jsonl").stat().st_mode & 0o777 == 0o600
    monkeypatch.undo()
    monkeypatch.setattr(kept, "digest", lambda folder: "0123")
    (tmp_path / "out/run.jsonl").chmod(0o644)  # as earlier versions made it
    assert len(keep()) == 2 and (tmp_path / "out/run.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_is_a_warning(keep, tmp_path, capsys):
    (tmp_path / "out").touch()
    with pytest.raises(NotADirectoryError):  # of this test, which reads it
        keep()
    assert "out gets no run.jsonl and run.log of this run" in capsys.readouterr().err


def test_what_is_printed_is_kept_without_secrets(tmp_path):
    code = f"""
import sys
from openrlhf_sagc.run.output import keep_output, redact_output
print("before")
redact_output()
keep_output({str(tmp_path / "run.log")!r})
print({URL!r})
print("\\ra bar", end="", file=sys.stderr)
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"before\n***\n" and done.stderr == b"\ra bar"
    assert (tmp_path / "run.log").read_bytes() == 2 * b"***\n\ra bar"


@pytest.mark.parametrize("module", ["openrlhf_sagc", "openrlhf_sagc.off"])
def test_each_command_keeps_its_start_and_its_output(run_trainer, tmp_path, module):
    with pytest.raises(RayStarted):
        run_trainer(module=module)
    start = json.loads((tmp_path / "trained/run.jsonl").read_text())
    assert start["command"].startswith(f"python -m {module} --actor.model_name_or_path none ")
    assert start["flags"]["rollout.batch_size"] == 8 and (tmp_path / "trained/run.log").exists()

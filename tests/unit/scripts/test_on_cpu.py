import os
import shutil
import subprocess
import time

import pytest
from cpu_stack import ROOT


@pytest.fixture
def locks(tmp_path):
    """on_cpu.sh runs a command where torch's locks are: locks(command) -> the folders that still have one."""
    (tmp_path / "build/cpu-patched/openrlhf").mkdir(parents=True)
    (tmp_path / "train_scripts").mkdir()
    for script in ("on_cpu.sh", "private_ray.sh"):
        shutil.copy(ROOT / "train_scripts" / script, tmp_path / "train_scripts")
    extensions = tmp_path / "build/torch_extensions"
    for name, seconds in {"left": 60, "by another clock": -3600, "left just now": 54, "held": 60}.items():
        (extensions / name).mkdir(parents=True)
        (extensions / name / "lock").touch()
        os.utime(extensions / name / "lock", (time.time() - seconds,) * 2)

    def run(command: str) -> set[str]:
        script = tmp_path / "train_scripts" / "on_cpu.sh"
        subprocess.run(["bash", script, "cpu-patched", "bash", "-c", command], check=True, timeout=60)
        return {lock.parent.name for lock in extensions.glob("*/lock")}

    run.folder = extensions
    return run


def test_a_killed_process_leaves_no_lock_that_torch_waits_for(locks, capfd):
    with (locks.folder / "held" / "lock").open():  # as torch.utils.file_baton does until it is done
        assert locks("true") == {"held"}
    said = capfd.readouterr().err.splitlines()
    assert said and all("left just now/lock" in line and line.endswith(" s left)") for line in said)
    assert locks("true") == set()


def test_without_compiled_extensions_a_command_runs(locks):
    shutil.rmtree(locks.folder)
    assert locks(": > $TORCH_EXTENSIONS_DIR.ran") == set()
    assert locks.folder.with_name("torch_extensions.ran").exists()

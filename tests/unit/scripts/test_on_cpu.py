import os
import shutil
import signal
import subprocess
import time

import pytest
from cpu_stack import ROOT


@pytest.fixture
def locks(tmp_path):
    """on_cpu.sh runs a command where torch's locks are: locks(command) -> the folders that still have one."""
    (tmp_path / "build/cpu-patched/openrlhf").mkdir(parents=True)
    (tmp_path / "train_scripts").mkdir()
    for script in ("on_cpu.sh", "help.sh", "private_ray.sh", "values.sh"):
        shutil.copy(ROOT / "train_scripts" / script, tmp_path / "train_scripts")
    extensions = tmp_path / "build/torch_extensions"
    for name, seconds in {"left": 60, "by another clock": -3600, "left just now": 45, "held": 60}.items():
        (extensions / name).mkdir(parents=True)
        (extensions / name / "lock").touch()
        os.utime(extensions / name / "lock", (time.time() - seconds,) * 2)

    def run(command: str) -> set[str]:
        script = tmp_path / "train_scripts" / "on_cpu.sh"
        subprocess.run(["bash", script, "cpu-patched", "bash", "-c", command], check=True, timeout=60)
        return {lock.parent.name for lock in extensions.glob("*/lock")}

    run.folder, run.script = extensions, tmp_path / "train_scripts" / "on_cpu.sh"
    return run


def test_a_killed_process_leaves_no_lock_that_torch_waits_for(locks, capfd):
    """Nor one that is killed later: what holds a lock is waited for, as torch would."""
    with (locks.folder / "held" / "lock").open() as lock:  # as torch.utils.file_baton does until it is done
        holder = subprocess.Popen(["sleep", "5"], stdin=lock)
    assert locks("true") == set()
    assert holder.poll() is not None
    said = capfd.readouterr().err
    assert "held/lock open" in said and "s before it deletes" in said
    assert "left/lock" not in said and "by another clock/lock" not in said


def test_without_compiled_extensions_a_command_runs(locks):
    shutil.rmtree(locks.folder)
    assert locks(": > $TORCH_EXTENSIONS_DIR.ran") == set()
    assert locks.folder.with_name("torch_extensions.ran").exists()


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM", "USR1"])
def test_a_signal_reaches_the_run_which_keeps_its_folder_to_its_end(locks, name):
    """Another one while it ends, too."""
    shutil.rmtree(locks.folder)
    ends = 'sleep 1; [ -d "$RAY_TMPDIR" ] && echo "there $RAY_TMPDIR"; exit 43'
    command = f"trap '{ends}' {name}; echo ready; while :; do sleep 0.1; done"
    program = ["bash", locks.script, "cpu-patched", "bash", "-c", command]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.Signals[f"SIG{name}"])
    time.sleep(0.3)
    process.send_signal(signal.Signals[f"SIG{name}"])
    word, folder = process.stdout.read().split()
    assert (process.wait(timeout=60), word) == (43, "there") and not os.path.exists(folder)


def test_whatever_else_ends_the_script_ends_the_run_first(locks):
    shutil.rmtree(locks.folder)
    command = "trap '[ -d \"$RAY_TMPDIR\" ] && echo there; exit' TERM; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        ["bash", locks.script, "cpu-patched", "bash", "-c", command], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGALRM)  # which bash has no trap for
    assert process.stdout.read() == "there\n" and process.wait(timeout=60)

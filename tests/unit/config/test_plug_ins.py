"""The reward's or agent's file, looked at in a process of its own."""

import os
import time

import pytest

from openrlhf_sagc.config import plug_ins
from openrlhf_sagc.config.plug_ins import looked_at, plug_in_of

GOOD = "def reward_func(queries, prompts, labels):\n    return {'rewards': [0.0]}\n"
OLD_AGENT = "async def step(observation, action, label, **kwargs):\n    return {}\n"


@pytest.fixture
def look(tmp_path, refused):
    """look(source, agent=False): the line on a file with this source; empty if it can be used."""

    def run(source, agent=False, name="plug_in.py", body=lambda: None):
        file = tmp_path / name
        if source is not None:
            file.write_text(source)
        flag = "--train.agent_func_path" if agent else "--reward.remote_url"

        def enter():
            with looked_at(flag, str(file), "AgentExecutor" if agent else "reward_func"):
                body()

        line = refused(enter)
        assert not line or line.startswith(f"{flag} {file}")
        return line

    return run


@pytest.mark.parametrize(
    "source, line",
    [
        (GOOD, ""),
        (None, "is not there (seen from "),
        ("def reward_func(q, p, l)\n    return 0", "is not Python: line 1: expected ':'"),
        ("x = '\0'", "source code"),
        (
            "def compute_score(a, b): ...",
            "has no reward_func (there are compute_score): name the function reward_func(queries",
        ),
        (
            "\nimport no_such_module",
            "cannot be imported: line 2: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("import os\nKEY = os.environ['NO_SUCH_KEY']", "cannot be imported: line 2: KeyError: 'NO_SUCH_KEY'"),
        ("def reward_func(q): ...", "has a reward_func(q), which is called as reward_func(queries, prompts, labels)"),
        ("import json\nfrom json import none", "cannot be imported: line 2: ImportError: cannot import name 'none'"),
        (
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\n",
            "line 4 makes a dataclass, which OpenRLHF cannot load here: drop `from __future__ import annotations`",
        ),
    ],
)
def test_reward_files(look, source, line):
    said = look(source)
    assert line in said and bool(line) == bool(said)


def test_an_agent_of_old_is_told_what_is_needed(look):
    said = look(OLD_AGENT, agent=True)
    assert "has no AgentExecutor (there are step): agents since OpenRLHF 0.9 are a class AgentExecutor" in said


def test_a_name_that_is_no_python_file(look, tmp_path):
    assert "does not end in .py: rename the file to " in look(GOOD, agent=True, name="agent.txt")
    (tmp_path / "folder.py").mkdir()
    assert "give the path of a .py file" in look(None, name="folder.py")


def test_what_a_file_starts_at_its_import_is_not_started_by_the_check(look, tmp_path):
    """A server of its own, a folder that only one import can claim, an end: engines import the file, and the first succeeds."""
    claims = (
        "import os, subprocess, sys\n"
        f"os.mkdir({str(tmp_path / 'claimed')!r})\n"
        f"subprocess.Popen(['touch', {str(tmp_path / 'started')!r}], start_new_session=True)\n"
        f"def claim(path=os.mkdir({str(tmp_path / 'default')!r})): ...\n"
        f"class Tools:\n    folder = os.mkdir({str(tmp_path / 'of_class')!r})\n"
        f"import side_effect\nif 'KEY' not in os.environ:\n    sys.exit('no key')\n"
    )
    (tmp_path / "side_effect.py").write_text(f"import os; os.mkdir({str(tmp_path / 'of_module')!r})")
    before = set(tmp_path.iterdir())
    assert not look("import sys\nsys.path.insert(0, '.')\n" + claims + GOOD)
    assert set(tmp_path.iterdir()) - before == {tmp_path / "plug_in.py"}


def test_modules_beside_the_command_are_found(look, tmp_path, monkeypatch):
    (tmp_path / "helper_of_reward.py").write_text("x = 1")
    assert "No module named 'helper_of_reward'" in look("import helper_of_reward\n" + GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))  # as Ray hands on the command's folders
    assert not look("import helper_of_reward\n" + GOOD)


def test_an_import_that_takes_too_long_is_said_and_ended(look, monkeypatch, capsys):
    monkeypatch.setattr(plug_ins, "TIMEOUT", 0)
    assert not look("import torch\n" + GOOD)
    assert "was not imported within 0 s, so it may not work" in capsys.readouterr().out


def test_the_process_ends_with_the_first_other_problem(look, tmp_path, monkeypatch):
    """Whatever an installed module starts: here the first module on the path waits for ever."""
    pids = tmp_path / "pids"
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "waits.py").write_text(
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )
    monkeypatch.syspath_prepend(str(package))

    def fails():
        while not pids.exists() or not pids.read_text():
            time.sleep(0.05)
        raise SystemExit("openrlhf_sagc: --reward.remote_url " + str(tmp_path / "plug_in.py") + " other")

    assert look("import waits\n" + GOOD, body=fails).endswith("other")
    _assert_gone(pids)


def _assert_gone(pids):
    for pid in map(int, pids.read_text().split()):
        for _ in range(100):
            try:
                os.kill(pid, 0)
                state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
            except OSError:
                break
            if state == "Z":  # nobody waits for it
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"{pid} lives")


def test_a_gpu_that_is_not_here_is_no_reason(look, tmp_path, monkeypatch, capsys):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "of_gpu.py").write_text("raise RuntimeError('No CUDA GPUs are available')")
    monkeypatch.syspath_prepend(str(package))
    assert not look("import of_gpu\n" + GOOD)
    assert "No CUDA GPUs are available: an engine with a GPU may import it" in capsys.readouterr().out


def test_a_timeout_by_signals_is_said(look, capsys):
    assert not look("import signal\n" + GOOD + "    signal.alarm(5)\n")
    said = capsys.readouterr().out
    assert "plug_in.py: line 4 uses signal.alarm: rewards run in threads, where timeouts by signals raise" in said
    assert not look(GOOD) and "signal" not in capsys.readouterr().out


def test_which_file_a_run_has(arguments):
    assert plug_in_of(arguments("--reward.remote_url", "http://h/x.py")) is not None
    assert plug_in_of(arguments("--reward.remote_url", "http://h/get")) is None
    assert plug_in_of(arguments("--reward.remote_url", "a.py")) == ("--reward.remote_url", "a.py", "reward_func")
    both = arguments("--reward.remote_url", "a.py", "--train.agent_func_path", "b.py")
    assert plug_in_of(both) == ("--train.agent_func_path", "b.py", "AgentExecutor")

"""The second wall without the first: children that may run any Python, as root and as another user."""

import os
import subprocess
import sys

import psutil
import pyseccomp
import pytest
from compared_by import comparisons, until

from openrlhf_sagc.grading import algebra, walls

SYSCALL = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); "
TAKEN = {  # what the code gets if it is let
    "its input": "import os; done = bool(os.read(0, 1))",
    "its environment": "done = open('/proc/self/environ').read() is not None",
    "its parent's environment": "import os; done = open(f'/proc/{os.getppid()}/environ').read() is not None",
    "a file": "done = bool(open('/etc/passwd').read())",
    "a folder's names": "import os; done = bool(os.listdir('/'))",
    "a new file": "import os; os.close(os.open('MARKER', os.O_CREAT | os.O_WRONLY)); done = True",
    "a new folder": "import os; os.mkdir('MARKER'); done = True",
    "a link": "import os; os.symlink('/etc', 'MARKER'); done = True",
    "a file in memory": "import os; done = os.memfd_create('x') >= 0",
    "a pipe": "import os; done = bool(os.pipe())",
    "a socket": "import socket; done = bool(socket.socket())",
    "a pair of sockets": "import socket; done = bool(socket.socketpair())",
    "a child": "import os; pid = os.fork(); pid or os._exit(0); done = True",
    "a program": "import subprocess; done = not subprocess.run(['true']).returncode",
    "a thread": "import threading; threading.Thread(target=int).start(); done = True",
    "a signal to itself": "import os; os.kill(os.getpid(), 0); done = True",
    "a signal to its parent": "import os; os.kill(os.getppid(), 0); done = True",
    "a handler": "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN); done = True",
    "its parent's memory": SYSCALL + "import os; b = ctypes.create_string_buffer(8); v = (ctypes.c_size_t * 2)(ctypes.addressof(b), 8); "
    "done = libc.process_vm_readv(os.getppid(), v, 1, v, 1, 0) >= 0 or ctypes.get_errno() == 14",  # EFAULT: it was let
    "its parent's limits": "import os, resource; done = bool(resource.prlimit(os.getppid(), resource.RLIMIT_CPU))",
    "a sleep": "import time; time.sleep(0.01); done = True",
    "a mapped file": "import mmap; done = bool(mmap.mmap(0, 4096, flags=mmap.MAP_PRIVATE))",
}  # fmt: skip
UNFILTERED = {335, 336}  # uretprobe and uprobe of x86-64: the kernel exempts them; outside of a probe they do nothing
USERS = {"the user": "", "another user": "os.setgroups([]); os.setgid(12345); os.setuid(12345)"}


@pytest.fixture(params=USERS, scope="module")
def confined(request):
    """Comparisons whose children are confined, by a process of this user or of another one."""
    if USERS[request.param] and os.getuid():
        pytest.skip("only root can become another user")
    with comparisons(USERS[request.param]) as running:
        yield running


@pytest.mark.parametrize("what", TAKEN)
def test_the_kernel_refuses(confined, what, tmp_path):
    code = TAKEN[what].replace("MARKER", str(tmp_path / "marker"))
    assert confined.ask("", code).result(100) is not True
    assert not list(tmp_path.iterdir())


def test_the_code_above_does_what_it_says_where_it_is_let(tmp_path):
    (tmp_path / "input").write_bytes(bytes(4096))
    for what, code in TAKEN.items():
        code = code.replace("MARKER", str(tmp_path / what)) + "\nassert done"
        with open(tmp_path / "input") as file:
            subprocess.run([sys.executable, "-c", code], check=True, stdin=file)


def test_every_other_call_is_refused(confined):
    numbers = {pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, call) for call in walls.CALLS}
    code = f"{SYSCALL}\ndone = True\nfor number in set(range(470)) - {numbers | UNFILTERED}:\n    code = libc.syscall(number, -1, -1, -1, -1, -1, -1)\n"
    assert confined.ask("", code + "    done = done and code == -1 and ctypes.get_errno() == 1").result(100) is True


def test_what_it_says_is_one_byte(confined, tmp_path):
    """Neither a pickle nor a line for another comparison reaches the process that started it."""
    marker = tmp_path / "marker"
    evil = f"class Evil:\n    def __reduce__(self):\n        return open, ({str(marker)!r}, 'w')\n"
    said = "import os, pickle\ndef say(data):\n    for descriptor in range(100):\n        try: os.write(descriptor, data)\n        except OSError: pass\n"
    for data in ("pickle.dumps(Evil())", 'b\'{"id": 0, "verdict": true}\\n\'', "b'x' * 9999999"):
        assert confined.ask("", f"{evil}{said}say({data}); done = False").result(100) is False
        assert confined.ask("", "done = False").result(100) is False
    assert not marker.exists()


def test_nothing_that_it_leaves_behind_reaches_the_next(confined):
    spoil = "import builtins, sys\nfrom openrlhf_sagc.grading import process as p\np.compare = None\n"
    spoil += "builtins.exec = lambda text, scope: scope.update(done=True)\nsys.modules.clear()\ndone = True"
    assert confined.ask("", spoil).result(100) is True  # what it says of itself, it may
    assert confined.ask("", "done = False").result(100) is False


def test_it_has_one_pipe_and_its_limits(confined, monkeypatch):
    sizes = {3 << 30: None, 1 << 28: True}
    assert {size: confined.ask("", f"done = len(bytearray({size})) > 0").result(100) for size in sizes} == sizes
    monkeypatch.setattr(algebra, "TRIES", (1000,) * 3)
    with comparisons("process.OWN_SECONDS = 100") as running:
        assert running.ask("", "done = True").result(100) is True
        process = psutil.Process(running._process.pid)
        until(lambda: not process.children())  # one says its verdict before it ends
        verdict = running.ask("", "while True: pass")
        (child,) = until(lambda: (found := process.children())[1:] == [] and found)
        until(lambda: "Seccomp:\t2" in open(f"/proc/{child.pid}/status").read())
        assert os.listdir(f"/proc/{child.pid}/fd") == [str(walls.OUTPUT)]
        assert os.readlink(f"/proc/{child.pid}/fd/{walls.OUTPUT}").startswith("pipe:")
        limits = dict(line.split("  ", 1) for line in open(f"/proc/{child.pid}/limits"))
        for name, most in zip(["cpu time", "file size", "core file size", "open files"], ["100 101", *["0 0"] * 3]):
            assert limits[f"Max {name}"].split()[:2] == most.split()
        assert open(f"/proc/{child.pid}/oom_score_adj").read() == "1000\n" and not verdict.done()

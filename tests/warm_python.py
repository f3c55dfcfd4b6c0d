"""A `python` that starts at once, with torch, DeepSpeed, vLLM and Ray imported: every call is a fork of one server.

Importing them takes 10 to 20 s of CPU in each of a run's five processes. A forked process starts with the same modules
and no other state of a run. What a module reads from the environment at its import it has read in the server's, and all
processes hash strings alike.

    python = start(environment, owner=os.getpid())      # the path of an executable; the server imports in the background
    subprocess.run([python, "-m", "module"])

The process gets the call's signals, is killed if the call is, and the call ends as the process ends. Options besides
-u, -c and -m are left to the real interpreter.
"""

import atexit
import builtins
import contextlib
import fcntl
import gc
import importlib
import itertools
import json
import multiprocessing.spawn
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

MODULES = (
    "torch transformers deepspeed peft datasets torch.utils.tensorboard torchdata.stateful_dataloader vllm "
    "vllm.v1.engine.async_llm vllm.v1.engine.core vllm.v1.worker.cpu_worker pandas pytest math_verify"
).split()
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def start(environment: dict[str, str], owner: int) -> Path:
    """Start a server that imports with `environment` and ends with the process `owner`; returns its `python`."""
    folder = Path(tempfile.mkdtemp(prefix="warm.", dir="/tmp"))  # a socket's path is limited to 107 bytes
    python = folder / "python"
    shim = shlex.join([sys.executable, "-IS", __file__, "--call", f"{folder}/socket"])
    python.write_text(f'#!/bin/sh\nexec {shim} "$@"\n')
    python.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listener, open(folder / "log", "w") as log:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        subprocess.Popen(
            [sys.executable, __file__, "--serve", str(listener.fileno()), str(owner), python],
            env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    return python


def call(address: str, arguments: list[str]) -> None:
    """Have the server run the interpreter's `arguments`, and end as that ends."""
    if split(arguments) is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    connection = socket.socket(socket.AF_UNIX)
    ended = f"tests/warm_python.py: the server has ended: see {Path(address).with_name('log')}"
    try:
        connection.connect(address)
    except OSError:
        sys.exit(ended)
    job = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    job["policy"], job["priority"] = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    job["files"] = files = inherited(but=connection.fileno())
    text = json.dumps(job).encode()
    with contextlib.suppress(ConnectionError):
        socket.send_fds(connection, [len(text).to_bytes(4, "big")], files)
        connection.sendall(text)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = connection.recv(4)
    if not answer:
        sys.exit(ended)
    code = int.from_bytes(answer, "big", signed=True)
    if code < 0:
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def inherited(but: int) -> list[int]:
    """The open file descriptors, which the caller has left open for its child, without `but`."""
    files = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one that listed the folder is closed by now
            os.fstat(number)
            files.append(number)
    return sorted(set(files) - {but})


def split(arguments: list[str]) -> tuple[str, str, list[str]] | None:
    """How the program is given ("", "-c" or "-m"), the program, its arguments; None for other options."""
    words = list(itertools.dropwhile(("-u", "-B").__contains__, arguments))
    if len(words) > 1 and words[0] in ("-c", "-m"):
        return words[0], words[1], words[2:]
    return ("", words[0], words[1:]) if words and not words[0].startswith("-") else None


def preload() -> None:
    """Import MODULES but for Ray, which reads the environment of its process once, when it is imported."""

    class WithoutRay:
        """Refuses `import ray`, and notes the modules that then go on without it."""

        def find_spec(self, name, path=None, target=None):
            if name == "ray":
                frame = sys._getframe()
                while frame.f_globals["__name__"].partition(".")[0] in ("importlib", __name__):
                    frame = frame.f_back
                importers.append(frame.f_globals["__name__"])
                raise ModuleNotFoundError(name, name="ray")

    cpuinfo = importlib.import_module("cpuinfo")
    # By a process that takes a second; DeepSpeed asks twice in each of its own.
    if processor := cpuinfo.get_cpu_info():
        cpuinfo.get_cpu_info = lambda: processor
    importers = []
    sys.meta_path.insert(0, finder := WithoutRay())
    for module in MODULES:
        importlib.import_module(module)
    sys.meta_path.remove(finder)
    for name in importers:  # imported anew where they are needed
        parent, _, child = name.rpartition(".")
        del sys.modules[name]
        delattr(sys.modules[parent], child)


def serve(listener: socket.socket, owner: int, folder: Path) -> dict:
    """Fork for every call until `owner` ends; returns in the process of a call, with its job."""
    owner_ended = os.pidfd_open(owner)
    preload()
    gc.collect()
    gc.freeze()  # a collection would copy the pages that the forks share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the guards
    while True:
        if owner_ended in select.select([listener, owner_ended], [], [])[0]:
            shutil.rmtree(folder)
            sys.exit()
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return guard(connection)
        connection.close()


def guard(connection: socket.socket) -> dict:
    """Fork the process of one call and watch over it and its caller; returns in that process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, descriptors, *_ = socket.recv_fds(connection, 4, 253)
    with connection.makefile("rb") as stream:
        job = json.loads(stream.read(int.from_bytes(head, "big")))
    process = os.fork()
    if process == 0:
        connection.close()
        apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 500) for descriptor in descriptors]
        os.closerange(0, 500)
        for number, descriptor in zip(job["files"], apart):
            os.dup2(descriptor, number)
        os.closerange(500, 1000)
        return job
    for descriptor in [0, 1, 2, *descriptors]:
        os.close(descriptor)
    ended = os.pidfd_open(process)
    while True:
        ready, *_ = select.select([connection, ended], [], [])
        if ended in ready:
            _, status = os.waitpid(process, 0)
            with contextlib.suppress(OSError):  # the caller is gone
                connection.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            os._exit(0)
        for number in connection.recv(64) or [signal.SIGKILL]:
            os.kill(process, number)


def run(job: dict, python: str) -> None:
    """Run the job's program as the interpreter would."""
    os.setsid()
    os.setpriority(os.PRIO_PROCESS, 0, job["priority"])
    os.sched_setscheduler(0, job["policy"], os.sched_param(0))
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    unbuffered = "-u" in job["arguments"][:2] or bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=unbuffered or sys.stdout.isatty())
    tempfile.tempdir = None  # TMPDIR is the call's
    sys.modules["numpy"].random.seed()  # a new process draws other numbers; `random` sees to it by itself
    sys.modules["torch"].seed()
    how, program, arguments = split(job["arguments"])
    first = {"-m": job["folder"], "-c": ""}.get(how, str(Path(program).resolve().parent))
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    warm_engine_cores(python)
    sys.executable, sys.argv = python, [how or program, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    code = 0
    try:
        if how == "-m":
            runpy._run_module_as_main(program)
        elif how == "-c":
            exec(program, vars(main))
        else:
            main.__file__ = program
            exec(compile(Path(program).read_bytes(), program, "exec"), vars(main))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code not in (None, code):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # What the interpreter does at its end, but for the destruction of every module.
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(ValueError):  # closed
        sys.stdout.flush()
    os._exit(code)


def warm_engine_cores(python: str) -> None:
    """Let vLLM's EngineCore start at once; other spawned processes may be known by their ids, as those of pebble are."""
    prepare, cold = multiprocessing.spawn.get_preparation_data, multiprocessing.spawn.get_executable()

    def prepared(name: str) -> dict:
        multiprocessing.spawn.set_executable(python if name.startswith("EngineCore") else cold)
        return prepare(name)

    multiprocessing.spawn.get_preparation_data = prepared


if __name__ == "__main__":
    if sys.argv[1] == "--start":  # for shell scripts: --start OWNER prints the path
        sys.exit(print(start(dict(os.environ), int(sys.argv[2]))))
    if sys.argv[1] == "--call":
        call(sys.argv[2], sys.argv[3:])
    _, _, listener, owner, python = sys.argv
    run(serve(socket.socket(fileno=int(listener)), int(owner), Path(python).parent), python)

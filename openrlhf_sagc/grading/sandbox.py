"""The second wall around a comparison: whatever code runs in its process, the kernel lets it reach nothing."""

import ctypes
import errno
import mmap
import os
import resource
import signal
from contextlib import suppress
from typing import Any

OUTPUT = 3  # the file descriptor that a confined process has
MEMORY = 2 << 30  # bytes that it may allocate
ADVICE = (4, 8, 14)  # MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, of malloc; others reach pages that processes share
HUGE_PAGES = 0x40000  # MAP_HUGETLB, a pool of the whole machine
# What computing takes. All else is refused: files, sockets, processes, threads, signals, and waiting for anything.
CALLS = (
    *("brk", "munmap", "mremap", "mprotect", "exit", "exit_group", "rt_sigreturn", "rt_sigprocmask"),
    *("getpid", "gettid", "getrandom", "clock_gettime", "clock_getres", "gettimeofday"),
)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def seccomp_filter() -> Any:
    """The kernel's filter for `confine`: it allows what stands here, and the rest fails with EPERM.

    Raises:
        RuntimeError: pyseccomp or libseccomp is not installed.
    """
    try:
        import pyseccomp  # type: ignore[import-untyped]
    except (ImportError, RuntimeError, OSError) as error:
        raise RuntimeError(f"{error}: apt-get install libseccomp2 && pip install pyseccomp") from None
    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    for call in CALLS:
        rules.add_rule(pyseccomp.ALLOW, call)
    rules.add_rule(pyseccomp.ALLOW, "write", pyseccomp.Arg(0, pyseccomp.EQ, OUTPUT))
    for advice in ADVICE:
        rules.add_rule(pyseccomp.ALLOW, "madvise", pyseccomp.Arg(2, pyseccomp.EQ, advice))
    kinds = mmap.MAP_ANONYMOUS | HUGE_PAGES
    rules.add_rule(pyseccomp.ALLOW, "mmap", pyseccomp.Arg(3, pyseccomp.MASKED_EQ, kinds, mmap.MAP_ANONYMOUS))
    return rules


def confine(rules: Any, target: int, cpu_seconds: int, parent: int) -> None:
    """Leave this process nothing but computing, and writing to OUTPUT; irrevocably, as root too.

    It ends with its parent, and after `cpu_seconds` of its own. On a busy machine these take longer, and cost it nothing.

    Args:
        rules: of `seccomp_filter`.
        target: file descriptor of a pipe, which becomes OUTPUT.
        cpu_seconds: of the processor, at least 1.
        parent: the process that forked this one. It may be gone before this one asks to end with it.

    Raises:
        OSError: the kernel refuses the filter.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if target != OUTPUT:
        os.dup2(target, OUTPUT, inheritable=False)
    os.set_blocking(OUTPUT, False)
    os.closerange(0, OUTPUT)
    os.closerange(OUTPUT + 1, os.sysconf("SC_OPEN_MAX"))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # a machine without memory ends this process first
    limits = {"AS": _allocated() + MEMORY, "CPU": cpu_seconds, "CORE": 0, "FSIZE": 0, "NOFILE": 0}
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    rules.load()


def _allocated() -> int:
    """Bytes of this process's address space."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def check(rules: Any) -> None:
    """Confine a child and see whether it can open a file.

    Raises:
        RuntimeError: it can, or cannot be confined.
    """
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        code = 1
        try:
            confine(rules, 1, cpu_seconds=10, parent=parent)
            os.open("/", os.O_RDONLY)
        except PermissionError:
            code = 0
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("this kernel does not confine processes by seccomp: use one with CONFIG_SECCOMP_FILTER")

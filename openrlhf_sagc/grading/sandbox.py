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
# What computing takes. All else is refused: files, sockets, processes, threads, signals, and waiting for anything.
CALLS = (
    *("brk", "munmap", "mremap", "mprotect", "exit", "exit_group", "rt_sigreturn"),
    *("getpid", "gettid", "getrandom", "clock_gettime", "clock_getres", "gettimeofday"),
)


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
    for advice in (4, 8, 14):  # MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE of malloc; others reach pages that are shared
        rules.add_rule(pyseccomp.ALLOW, "madvise", pyseccomp.Arg(2, pyseccomp.EQ, advice))
    kinds = mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB, a pool of the whole machine
    rules.add_rule(pyseccomp.ALLOW, "mmap", pyseccomp.Arg(3, pyseccomp.MASKED_EQ, kinds, mmap.MAP_ANONYMOUS))
    return rules


def confine(rules: Any, target: int, cpu_seconds: int, clock_seconds: float, parent: int) -> None:
    """Leave this process nothing but computing, and writing to OUTPUT; irrevocably, as root too.

    `target`, the file descriptor of a pipe, becomes OUTPUT. The kernel ends it with its `parent`, by SIGXCPU after `cpu_seconds`
    (1 or more) of its own, and by SIGALRM after `clock_seconds`.

    Raises:
        OSError: the kernel refuses the filter.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it had ended before
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started its parent may have blocked signals
    signal.setitimer(signal.ITIMER_REAL, clock_seconds)
    os.dup2(target, OUTPUT)
    os.closerange(0, OUTPUT)
    os.closerange(OUTPUT + 1, os.sysconf("SC_OPEN_MAX"))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # a machine without memory ends this process first
    with open("/proc/self/statm") as file:
        allocated = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (allocated + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    for nothing in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        resource.setrlimit(nothing, (0, 0))
    rules.load()


def check(rules: Any) -> None:
    """Confine a child and see whether it can open a file.

    Raises:
        RuntimeError: it can, or cannot be confined.
    """
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            confine(rules, 1, cpu_seconds=10, clock_seconds=100, parent=parent)
            os.open("/", os.O_RDONLY)
        except PermissionError:
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("this kernel does not confine processes by seccomp: use one with CONFIG_SECCOMP_FILTER")

"""The two walls around a comparison: text that sympy reads stays text, and whatever code runs all the same reaches nothing.

latex2sympy2 takes some names literally (whatever stands below an accent), and sympy writes expressions into Python source
in many places: numbers, lambdify, sympify of a string, parse_expr, autowrap. So names are checked, and nothing is compiled.
"""

import ctypes
import errno
import mmap
import os
import re
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

# x, \alpha, x_{n+1}, vec{a}, x', the direction of a limit: neither dots nor brackets, without which no name does anything
NAME = re.compile(r"[\w\\{},+*/^-]{1,100}'{0,3}")
OUTPUT = 3  # the file descriptor that a confined process has
MEMORY = 2 << 30  # bytes that it may allocate
# What computing takes. All else is refused: files, sockets, processes, threads, signals, and waiting for anything.
CALLS = (
    *("brk", "munmap", "mremap", "mprotect", "exit", "exit_group", "rt_sigreturn"),
    *("getpid", "gettid", "getrandom", "clock_gettime", "clock_getres", "gettimeofday"),
)


def prepare() -> None:
    """Let sympy, in this process, make numbers and products of polynomials without evaluating a text."""
    from sympy.core import numbers  # type: ignore[import-untyped]
    from sympy.polys.monomials import MonomialOps  # type: ignore[import-untyped]

    numbers.sympify = _number  # latex2sympy2 makes numbers by sympy.Number(text), which evaluates it
    for variables in range(1, 11):  # of a polynomial; sympy generates these functions, and keeps them
        monomials = MonomialOps(variables)
        for operation in ("mul", "pow", "mulpow", "ldiv", "div", "lcm", "gcd"):
            getattr(monomials, operation)()


def disarm() -> None:
    """Let this process, from now on, neither compile nor execute a text, nor import a module. Irrevocable.

    Whatever tries raises a RuntimeError, in every module. What is needed has to be imported before.
    """
    prepare()
    sys.addaudithook(_refuse_code)


def check_names(expression: Any) -> None:
    """Names in an expression of sympy's, or in a matrix, list or tuple of them, are names.

    Raises:
        ValueError: a symbol or function has another name.
    """
    from sympy import preorder_traversal  # type: ignore[import-untyped]

    for part in preorder_traversal(expression):
        name = str(getattr(part, "name", getattr(part, "__name__", type(part).__name__)))
        if not NAME.fullmatch(name):
            raise ValueError(f"{name[:40]!r} is no name")


def _refuse_code(event: str, _: tuple) -> None:
    if event in ("compile", "exec", "import"):
        raise RuntimeError(f"{event} is forbidden while answers are compared")


def _number(value: Any) -> Any:
    """sympy's number for a text of digits, point and exponent; other values as sympify has them."""
    from sympy import Float, Integer, sympify

    if isinstance(value, str):
        return Integer(value) if value.isdecimal() else Float(value)
    return sympify(value)


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
        OSError: the kernel refuses the filter, or does nothing by it.
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
    with suppress(PermissionError):  # of the filter
        os.open("/", os.O_RDONLY)

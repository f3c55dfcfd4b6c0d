"""The start of Ray, again where it gives up on its own processes."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

STARTS = 3


def started(init: Callable, *args: Any, **settings: Any) -> Any:
    """`ray.init`, up to three times: Ray 2.55 ends itself where its own processes take more than 15 s to start.

    They do on a busy machine or from a slow disk, such as NFS (https://github.com/ray-project/ray/issues/65983).

    Raises:
        SystemExit: it has not started; the message is one line.
    """
    import psutil

    said = ""
    for start in range(1, STARTS + 1):
        others = psutil.Process().children()
        try:
            with _own_sigterm():
                return init(*args, **settings)
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            said = str(error)
        for process in set(psutil.Process().children()) - set(others):  # Ray would leave them until this one ends
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        print(f"openrlhf_sagc: Ray has not started in time ({start} of {STARTS})", file=sys.stderr)
    sys.exit(
        "openrlhf_sagc: Ray does not start, since the machine is busy or its Python is on a slow disk: start again later, or from "
        f"a local disk. {said}"
    )


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, if there is one: Ray's raises in the middle of Ray's calls, which end with abort()."""
    from ray._private import utils

    own, set_handler = signal.getsignal(signal.SIGTERM), utils.set_sigterm_handler
    if own is signal.SIG_DFL:
        yield
        return
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = set_handler
        signal.signal(signal.SIGTERM, own)  # Ray's library has one too

"""Whether Ray's ports are closed to other users of the network; preflight.py asks before several nodes start."""

import importlib.metadata
import json
import os
import re
import shlex
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

RAY_WITH_TOKENS = "2.52"
MAKE_TOKEN = "(umask 077; ray get-auth-token --generate >/dev/null)"


def reason_for_token(settings: dict[str, list[str]], cluster: str | None) -> str:
    """What of the run other users of the network could reach, for an error line; empty if nothing."""
    for flag, values in settings.items():
        if re.fullmatch(r"--\w+\.num_no?d?e?s?", flag) and values:  # argparse takes abbreviations
            with suppress(ValueError):
                if int(values[0]) > 1:
                    return f"{flag} {values[0]}"
    for name, address in (("--cluster", cluster), ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"))):
        if address and not is_this_machine(address):
            return f"{name} {address}"
    return ""


def is_this_machine(address: str) -> bool:
    """Whether a Ray address (http://host:8265, ray://host:10001, host:6379, auto) is on this machine."""
    if address in ("auto", "local"):
        return True
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname
        for family, kind, protocol, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(place)  # which only an address of this machine allows
    except (OSError, ValueError):
        return False
    return True


def token_problems(why: str) -> Iterator[str]:
    """What keeps this shell from starting Ray, or a job, with a token. Says what `why` needs one for."""
    version = importlib.metadata.version("ray")
    if _numbers(version) < _numbers(RAY_WITH_TOKENS):
        yield f"{why} needs a token, which Ray {version} does not know: install Ray {RAY_WITH_TOKENS} or later"
        return
    problem, make, named = "", MAKE_TOKEN, os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named or Path.home() / ".ray/auth_token")
    if os.environ.get("RAY_AUTH_MODE") != "token":
        problem = "RAY_AUTH_MODE is not token"
    elif not os.environ.get("RAY_AUTH_TOKEN"):
        try:
            if not file.read_text().strip():
                problem = f"{file} is empty"
                make = f"rm {shlex.quote(str(file))}; {MAKE_TOKEN}"  # whose mode the new token would have
            if not problem and file.stat().st_mode & 0o077:
                yield f"{file} has Ray's token, and other users may read it: chmod 600 {shlex.quote(str(file))}, in a folder of your own"
        except (OSError, ValueError) as error:
            problem = f"{file} cannot be read: {getattr(error, 'strerror', error)}"
        if problem and named:  # Ray would look there alone
            make = f"unset RAY_AUTH_TOKEN_PATH; {MAKE_TOKEN}"
    if problem:
        yield (
            f"{why} needs a token, else whoever reaches Ray's ports runs jobs as you ({problem}): make one with `{make}`, "
            "have the same ~/.ray/auth_token on all nodes, and `export RAY_AUTH_MODE=token` there before Ray starts, and here; "
            "or ISOLATED_NETWORK=yes (preflight.py --isolated_network) where a platform lets nobody else reach the nodes"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def open_cluster_problems(address: str) -> Iterator[str]:
    """The cluster that runs was started without a token."""
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/authentication_mode", timeout=30) as answer:
            mode = json.loads(answer.read(2**16)).get("authentication_mode")
    except urllib.error.HTTPError:
        mode = "unknown"  # a Ray without tokens has no such page
    except (OSError, ValueError, AttributeError):
        return
    if mode in ("disabled", "unknown"):
        yield (
            f"the Ray cluster at {address} was started without a token, so that whoever reaches it runs jobs as you: `ray stop` "
            "on all nodes, then `export RAY_AUTH_MODE=token` and start Ray again"
        )

"""In an engine's actor: a call of a reward server that may be away, slow, broken or hostile.

It costs at most its time and a little memory.
"""

import asyncio
import json
import math
import re
import time
import zlib
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import aiohttp
from yarl import URL

from openrlhf_sagc.engine.answers import BRIEF, Failure, describe
from openrlhf_sagc.redaction import shown, without_secrets

MOST_BYTES = 2**26  # of an answer, as sent and after decompression
SMALL = 2**20  # bytes up to which answers are read at the same time
MOST_OF_ERROR = 2**16  # bytes read of the answer that says what went wrong
CONNECT = 0.9  # seconds for a first connection, see `Backlog`; the system asks again after 1, 3, 7, ... seconds
BEAT = 0.05  # seconds between two looks at whether this process's event loop runs
STALL = 10.0  # seconds that one of more than SMALL bytes may stop in the middle, since others wait for its end
MOST_REDIRECTS = 5
REDIRECTS = {301: "GET", 302: "GET", 303: "GET", 307: "POST", 308: "POST"}  # the next method, as aiohttp has it
AWAY = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)  # the latter: it went away in its answer
REJECTED = (400, 401, 413, 422)  # what is wrong with the request will be wrong with it again
LONGEST = 4000  # characters of its own error that are looked at
ENCODINGS = ("gzip", "deflate")
TRACEBACK = "Traceback (most recent call last)"


@cache
def named(url: str) -> str:
    """The address of a reward server as it is printed."""
    return shown(url, "--reward.remote_url")


class NotAnswered(Failure):
    """The server answered with a status that is no answer; `retry_after`: seconds in which it wants not to be asked again."""

    retry_after = 0.0


class ServerAway(NotAnswered):
    """The server cannot be reached, or says that it cannot answer now (5xx, 429): asking again may help."""


class Rejected(NotAnswered):
    """The server does not take the request (400, 401, 413, 422)."""


class Backlog:
    """How many requests a server of few threads has at a time. Where that is known, the others wait here, in their order.

    A connection that is not there after CONNECT seconds finds the server's backlog full. From then on as many requests are
    out as it holds, and one more with each that ends. Else connections would wait in the network, which asks for them ever more
    seldom, and has a server read from some of them whose request it has lost.

    `ran` counts the seconds in which the event loop ran while requests were out. Where it did not, as where hundreds of
    rollouts end together, a connection may be there that nobody has looked at.
    """

    def __init__(self) -> None:
        self._most, self._out = math.inf, 0
        self._waiting: deque[asyncio.Future] = deque()
        self.ran, self._looked, self._is_looking = 0.0, 0.0, False

    async def enter(self) -> None:
        """Wait until this request may go out."""
        add = self._waiting.append
        while self._out >= self._most:
            add(turn := asyncio.get_running_loop().create_future())
            add = self._waiting.appendleft  # once it was its turn
            try:
                await turn
            except asyncio.CancelledError:
                self._call()
                raise
        self._out += 1
        if not self._is_looking:
            self._is_looking, self._looked = True, time.monotonic()
            self._look()

    def _look(self) -> None:
        """Count the seconds since the last look, and look again soon as long as requests are out."""
        before, self._looked = self._looked, time.monotonic()
        self.ran += min(self._looked - before, BEAT)
        self._is_looking = self._out > 0
        if self._is_looking:
            asyncio.get_running_loop().call_later(BEAT, self._look)

    def leave(self, *, full: bool) -> None:
        """A request is over, or has found no room."""
        self._out -= 1
        self._most = max(1, self._out) if full else self._most + 1
        self._call()

    def _call(self) -> None:
        """As many that wait as may go out now."""
        free = self._most - self._out
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # nor cancelled
                turn.set_result(None)
                free -= 1


async def post(url: str, sample: dict, large: asyncio.Semaphore, backlog: Backlog) -> Any:
    """The server's answer to `sample`, parsed. It has no time limit: a busy server may let a connection wait.

    Args:
        url: of the server. Redirects are followed to the same scheme, host and port alone, so that a sample goes to no other
            server than the one that was named.
        large: lets through one answer of more than SMALL bytes at a time, so that many of them fit into memory.
        backlog: of this server.

    Raises:
        NotAnswered: of the kind that its status says, or `ServerAway` where it cannot be reached.
        Failure: any other error, a redirect to another server, too many bytes, or no JSON. The line names the server
            without user, password and query, and has what the server says of its error.
    """
    where = named(url)
    # Compressed answers are not asked for, and what comes compressed all the same is decompressed here, up to a limit.
    headers = {"Accept-Encoding": "identity"}
    try:
        # A TLS handshake counts as connecting. It has its place in the server's queue, which it would lose.
        connect = None if URL(url).scheme == "https" else CONNECT
        while True:
            await backlog.enter()
            full, began = False, backlog.ran
            try:
                timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect)
                async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False, headers=headers) as session:
                    return await _ask(session, URL(url), sample, where, large)
            except aiohttp.ServerTimeoutError:  # of the connection
                connect = connect or CONNECT  # twice as long next time, as the way may just be slow
                full, connect = backlog.ran - began > connect / 2, 2 * connect
            finally:
                backlog.leave(full=full)
    except Failure:
        raise
    except Exception as error:
        away = isinstance(error, AWAY) and not isinstance(error, aiohttp.ClientSSLError)
        raise (ServerAway if away else Failure)(describe(error, where=where)) from None


async def _ask(session: aiohttp.ClientSession, url: URL, sample: dict, where: str, large: asyncio.Semaphore) -> Any:
    """The answer of the server, or of where it redirects to."""
    method, target = "POST", url
    for _ in range(MOST_REDIRECTS + 1):
        body = sample if method == "POST" else None
        async with session.request(method, target, json=body, allow_redirects=False) as response:
            location = response.headers.get("Location")
            if response.status not in REDIRECTS or location is None:
                return await _answer(response, where, large)
            method = "GET" if method == "GET" else REDIRECTS[response.status]
            target = _next_target(url, target, location, f"{where} answered {response.status}")
    raise Failure(f"{where} redirects more than {MOST_REDIRECTS} times")


def _next_target(url: URL, target: URL, location: str, answered: str) -> URL:
    """Where a redirect leads to, with user and password of the server that was named.

    Raises:
        Failure: to another server, or nowhere.
    """
    try:
        there = target.join(URL(location))
        is_same = there.origin() == url.origin()
    except ValueError:
        raise Failure(f"{answered}, a redirect to {_short(location)}, which is not an address") from None
    if not is_same:
        elsewhere = named(str(there.with_user(None).with_query(None).with_fragment(None)))[:200]
        raise Failure(
            f"{answered}, a redirect to another server, which is not followed: use {elsewhere} if that is right"
        )
    return there.with_user(url.user).with_password(url.password) if url.user else there.with_user(None)


async def _answer(response: aiohttp.ClientResponse, where: str, large: asyncio.Semaphore) -> Any:
    """The parsed body of an answer that is no redirect."""
    encoding, status = response.headers.get("Content-Encoding", ""), response.status
    if not 200 <= status < 300:
        away = status >= 500 or status == 429
        kind = ServerAway if away else Rejected if status in REJECTED else NotAnswered
        said = await _what_it_says(response, encoding)
        failure = kind(f"{where} answered {status} {_short(response.reason)}{said}")
        failure.retry_after = _retry_after(response.headers)
        raise failure
    body = bytearray()
    await _read(response, body, SMALL)
    is_large = len(body) > SMALL or bool(encoding)  # a small body may be large when it is decompressed
    async with large if is_large else nullcontext():
        try:
            await _read(response, body, MOST_BYTES, STALL)
        except asyncio.TimeoutError:
            raise ServerAway(f"{where} stopped in the middle of its answer for {STALL:g} s") from None
        if len(body) <= MOST_BYTES and encoding.lower() not in ("", "identity"):
            if encoding.lower() not in ENCODINGS:
                known = " and ".join(ENCODINGS)
                raise Failure(f"{where} answered in Content-Encoding {_short(encoding)}: {known} are read")
            body = bytearray(_decompressed(body, MOST_BYTES + 1))
        if len(body) > MOST_BYTES:
            raise Failure(f"{where} sent more than {MOST_BYTES >> 20} MiB")
        return json.loads(body)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that the header of this name asks for, as a number or as a time on the server's clock; 0 if it does not."""
    value = headers.get("Retry-After", "")
    try:
        if value.strip().isdecimal():
            return float(value)
        now = parsedate_to_datetime(headers["Date"]) if "Date" in headers else datetime.now(UTC)
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError, OverflowError):  # no date, or one without its zone
        return 0.0


async def _read(response: aiohttp.ClientResponse, body: bytearray, most: int, stall: float | None = None) -> None:
    """Read on until the body's end, or until it has more than `most` bytes.

    Raises:
        TimeoutError: nothing came for `stall` seconds.
    """
    while len(body) <= most:
        chunk = await asyncio.wait_for(response.content.readany(), stall)
        if not chunk:
            return
        body += chunk


def _decompressed(body: bytearray, most: int) -> bytes:
    """At most so many bytes of a body as it was before gzip or zlib, by its header."""
    return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most)


async def _what_it_says(response: aiohttp.ClientResponse, encoding: str) -> str:
    """The server's own words on its error, for the end of a line, of a page its first; "" if there are none to be read."""
    body = bytearray()
    try:
        await _read(response, body, MOST_OF_ERROR)
        if encoding.lower() in ENCODINGS:
            body = bytearray(_decompressed(body, MOST_OF_ERROR))
    except (aiohttp.ClientError, zlib.error):
        pass  # its status says enough
    text = bytes(body[:MOST_OF_ERROR]).decode(errors="replace")
    try:
        said = own_error(json.loads(text))
    except (ValueError, RecursionError):
        lines = text[:LONGEST].splitlines()  # of which the first has more than tags
        said = text if TRACEBACK in text else next((line for line in lines if _without_tags(line).strip()), "")
    return f": {shortened(said)}" if said.strip() else ""


def own_error(answer: Any) -> str:
    """What a server's JSON says of an error under one of the usual names; "" if it says nothing."""
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, dict):
        return ""
    said = next((answer[name] for name in ("error", "detail", "message", "msg") if answer.get(name)), "")
    if isinstance(said, dict) and isinstance(said.get("message"), str):
        return said["message"]
    return said if isinstance(said, str) else BRIEF.repr(said)


def shortened(said: str) -> str:
    """Words of a server in one short line: without secrets and tags, of a traceback the last line."""
    if TRACEBACK in said:
        said = said.strip().rpartition("\n")[2]
    return " ".join(_without_tags(without_secrets(said[:LONGEST])).split())[:200]


def _without_tags(text: str) -> str:
    return re.sub("<[^>]*>", " ", text)


def _short(said: str | None) -> str:
    """What the server says of itself, in a message; cut after its secrets are out, of which half would be left else."""
    return repr(without_secrets(said or ""))[:100]

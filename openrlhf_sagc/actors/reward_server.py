"""A call of a reward server, which may be away, slow, broken or hostile: it costs at most its time and a little memory."""

import asyncio
import json
import re
import zlib
from contextlib import nullcontext
from typing import Any

import aiohttp
from yarl import URL

from openrlhf_sagc.actors.answers import BRIEF, Failure, describe
from openrlhf_sagc.redaction import without_secrets

MOST_BYTES = 2**26  # of an answer, as sent and after decompression
SMALL = 2**20  # bytes up to which answers are read at the same time
MOST_OF_ERROR = 2**16  # bytes read of the answer that says what went wrong
CONNECT = 10.0  # seconds for a connection; then the server counts as away
MOST_REDIRECTS = 5
REDIRECTS = {301: "GET", 302: "GET", 303: "GET", 307: "POST", 308: "POST"}  # the next method, as aiohttp has it
AWAY = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)  # the latter: it went away in its answer
LONGEST = 4000  # characters of its own error that are looked at
ENCODINGS = ("gzip", "deflate")


class ServerAway(Failure):
    """The server cannot be reached, or says that it cannot answer now (5xx, 429): asking again may help."""


async def post(url: str, sample: dict, large: asyncio.Semaphore) -> Any:
    """The server's answer to `sample`, parsed. Apart from the connection it has no time limit of its own.

    Args:
        url: of the server. Redirects are followed to the same scheme, host and port alone, so that a sample goes to no other
            server than the one that was named.
        large: lets through one answer of more than SMALL bytes at a time, so that many of them fit into memory.

    Raises:
        ServerAway: it cannot be reached, or answers 5xx or 429.
        Failure: any other error, a redirect to another server, too many bytes, or no JSON. The line names the server
            without user, password and query, and has what the server says of its error.
    """
    where = without_secrets(url)
    # Compressed answers are not asked for, and what comes compressed all the same is decompressed here, up to a limit.
    headers = {"Accept-Encoding": "identity"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
    try:
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False, headers=headers) as session:
            return await _ask(session, URL(url), sample, where, large)
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
        elsewhere = without_secrets(str(there))[:200]
        raise Failure(
            f"{answered}, a redirect to another server, which is not followed: use {elsewhere} if that is right"
        )
    return there.with_user(url.user).with_password(url.password) if url.user else there.with_user(None)


async def _answer(response: aiohttp.ClientResponse, where: str, large: asyncio.Semaphore) -> Any:
    """The parsed body of an answer that is no redirect."""
    encoding, status = response.headers.get("Content-Encoding", ""), response.status
    if not 200 <= status < 300:
        away = status >= 500 or status == 429
        said = await _what_it_says(response, encoding)
        raise (ServerAway if away else Failure)(f"{where} answered {status} {_short(response.reason)}{said}")
    body = bytearray()
    await _read(response, body, SMALL)
    is_large = len(body) > SMALL or bool(encoding)  # a small body may be large when it is decompressed
    async with large if is_large else nullcontext():
        await _read(response, body, MOST_BYTES)
        if len(body) > MOST_BYTES:
            raise _too_much(where)
        return json.loads(_decompressed(bytes(body), encoding, where))


async def _read(response: aiohttp.ClientResponse, body: bytearray, most: int) -> None:
    """Read on until the body's end, or until it has more than `most` bytes."""
    while len(body) <= most:
        chunk = await response.content.readany()
        if not chunk:
            return
        body += chunk


def _decompressed(body: bytes, encoding: str, where: str) -> bytes:
    """The body as it was before its `Content-Encoding`."""
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() not in ENCODINGS:
        raise Failure(f"{where} answered in Content-Encoding {_short(encoding)}: {' and '.join(ENCODINGS)} are read")
    text = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, MOST_BYTES + 1)  # 32: gzip or zlib by its header
    if len(text) > MOST_BYTES:
        raise _too_much(where)
    return text


async def _what_it_says(response: aiohttp.ClientResponse, encoding: str) -> str:
    """The server's own words on its error, for the end of a line; "" if there are none, or none that can be read."""
    body = bytearray()
    try:
        await _read(response, body, MOST_OF_ERROR)
        if encoding.lower() in ENCODINGS:
            body = bytearray(zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(bytes(body), MOST_OF_ERROR))
    except (aiohttp.ClientError, zlib.error):
        pass  # its status says enough
    text = bytes(body[:MOST_OF_ERROR]).decode(errors="replace")
    try:
        said = own_error(json.loads(text))
    except (ValueError, RecursionError):
        said = text
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
    if "Traceback (most recent call last)" in said:
        said = said.strip().rpartition("\n")[2]
    said = re.sub("<[^>]*>", " ", without_secrets(said[:LONGEST]))
    return " ".join(said.split())[:200]


def _short(said: str | None) -> str:
    """What the server says of itself, in a message; cut after its secrets are out, of which half would be left else."""
    return repr(without_secrets(said or ""))[:100]


def _too_much(where: str) -> Failure:
    return Failure(f"{where} sent more than {MOST_BYTES >> 20} MiB")

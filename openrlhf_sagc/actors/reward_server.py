"""A call of a reward server, which may be slow, broken or hostile: it costs at most its time and MOST_BYTES of memory."""

import json
import zlib
from typing import Any

import aiohttp

from openrlhf_sagc.actors.answers import Failure, describe
from openrlhf_sagc.redaction import without_secrets

MOST_BYTES = 2**20  # of an answer, as sent and after decompression
ENCODINGS = ("gzip", "deflate")


async def post(url: str, sample: dict) -> Any:
    """The server's answer to `sample`, parsed. It has no time limit of its own.

    Raises:
        Failure: the server cannot be reached, answers with an error or a redirect, or sends too much or no JSON. The line
            names the server without user, password and query.
    """
    where = without_secrets(url)
    # Compressed answers are not asked for, and what comes compressed all the same is decompressed here, up to a limit.
    headers = {"Accept-Encoding": "identity"}
    settings: dict = {"timeout": aiohttp.ClientTimeout(total=None), "auto_decompress": False, "headers": headers}
    try:
        async with aiohttp.ClientSession(**settings) as session:
            async with session.post(url, json=sample, allow_redirects=False) as response:
                if not 200 <= response.status < 300:
                    followed = ", a redirect, which is not followed" if 300 <= response.status < 400 else ""
                    raise Failure(f"{where} answered {response.status} {_short(response.reason)}{followed}")
                body = await _read(response, where)
                return json.loads(_decompressed(body, response.headers.get("Content-Encoding", ""), where))
    except Failure:
        raise
    except Exception as error:
        raise Failure(describe(error, where=where)) from None


async def _read(response: aiohttp.ClientResponse, where: str) -> bytes:
    """The body, up to the limit."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise _too_much(where)
    return bytes(body)


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


def _short(said: str | None) -> str:
    """What the server says of itself, in a message; cut after its secrets are out, of which half would be left else."""
    return repr(without_secrets(said or ""))[:100]


def _too_much(where: str) -> Failure:
    return Failure(f"{where} sent more than {MOST_BYTES >> 20} MiB")

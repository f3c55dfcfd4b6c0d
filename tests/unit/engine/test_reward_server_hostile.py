"""Reward servers that send too much, too slowly or somewhere else, real ones on this machine; without Ray or vLLM."""

import asyncio
import json
import tracemalloc
import zlib

import pytest
from engine_actor import Actor, run
from openrlhf.utils.agent import SingleTurnAgentExecutor
from reward_servers import MEGABYTE, SECRETS, begin, with_secrets

import openrlhf_sagc.engine.reward_server as reward_server
from openrlhf_sagc.decisions.records import ROLLOUT


def huge(handler, free, written):
    begin(handler)
    while written[0] < 1024 * MEGABYTE and not free.is_set():
        written[0] += handler.wfile.write(b" " * MEGABYTE)


def bomb(handler, free, written):
    """A quarter of a gigabyte in a quarter of a megabyte."""
    squeeze = zlib.compressobj(9, wbits=31)
    body = b"".join([squeeze.compress(b" " * MEGABYTE) for _ in range(256)]) + squeeze.flush()
    begin(handler, Content_Encoding="gzip", Content_Length=str(len(body)))
    written[0] += handler.wfile.write(body)


def trickle(handler, free, written):
    begin(handler)
    while not free.wait(0.05):
        written[0] += handler.wfile.write(b" ")


@pytest.mark.parametrize(
    "hostile, cause, most_written",
    [
        (huge, "sent more than 4 MiB", 64 * MEGABYTE),
        (bomb, "sent more than 4 MiB", MEGABYTE),
        (trickle, "did not answer within 2 s", 100),
    ],
)
def test_a_hostile_server_costs_its_sample_and_little_memory(serve, monkeypatch, hostile, cause, most_written):
    """Four samples of which it is hostile to one; the others have their rewards."""
    monkeypatch.setattr(reward_server, "MOST_BYTES", 4 * MEGABYTE)
    written = [0]

    def answer(handler, free):
        if payloads[-1]["labels"] == ["hostile"]:
            return hostile(handler, free, written)
        begin(handler)
        handler.wfile.write(b'{"rewards": [1.0]}')

    url, payloads = serve(answer)

    async def rollouts():
        actor = Actor(SingleTurnAgentExecutor(url), timeout=2.0 if hostile is trickle else 30.0)
        good = [await actor.rollout("good") for _ in range(3)]
        return [*good, await actor.rollout("hostile")]

    tracemalloc.start()
    try:
        *good, bad = run(rollouts())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [response["reward"] for response in good] == [1.0] * 3
    assert bad["reward"] is None and cause in bad[ROLLOUT].failure and bad[ROLLOUT].tokens == 5
    assert written[0] <= most_written and peak < 24 * MEGABYTE


def test_a_large_answer_that_stops_in_the_middle_holds_up_no_other(serve, monkeypatch):
    monkeypatch.setattr(reward_server, "STALL", 0.5)

    def answer(handler, free):
        payload = payloads[-1]["labels"]
        begin(handler)
        handler.wfile.write(b'{"rewards": 0.5, "text": "' + b"a" * 3 * MEGABYTE)
        free.wait(30 if payload == ["stops"] else 0)
        handler.wfile.write(b'"}')

    url, payloads = serve(answer)

    async def rollouts():
        actor = Actor(SingleTurnAgentExecutor(url), timeout=20.0)
        stops = asyncio.create_task(actor.rollout("stops"))
        while not payloads:
            await asyncio.sleep(0.01)
        return [*[await actor.rollout("goes on") for _ in range(3)], await stops]

    *others, stopped = run(rollouts())
    assert [response["reward"] for response in others] == [0.5] * 3
    assert stopped[ROLLOUT].failure == f"{url} stopped in the middle of its answer for 0.5 s"


def test_a_compressed_answer_is_read(serve):
    def answer(handler, free):
        body = zlib.compress(b'{"rewards": [0.25]}', wbits=wbits)
        begin(handler, Content_Encoding=encoding, Content_Length=str(len(body)))
        handler.wfile.write(body)

    url, _ = serve(answer)
    for encoding, wbits in (("gzip", 31), ("deflate", 15), ("GZIP", 31)):
        assert run(Actor(SingleTurnAgentExecutor(url)).rollout())["reward"] == 0.25
    encoding = "br"
    assert "answered in Content-Encoding 'br'" in run(Actor(SingleTurnAgentExecutor(url)).rollout())[ROLLOUT].failure


def test_an_answer_of_64_mib_is_read_and_large_ones_one_at_a_time(serve):
    """Sixty megabytes beside the reward, three times at once: the memory of one of them."""
    size = 60 * MEGABYTE

    def answer(handler, free):
        begin(handler, Content_Encoding="gzip")
        squeeze = zlib.compressobj(1, wbits=31)
        handler.wfile.write(squeeze.compress(b'{"rewards": 0.5, "text": "'))
        for _ in range(60):
            handler.wfile.write(squeeze.compress(b"a" * MEGABYTE))
        handler.wfile.write(squeeze.compress(b'"}') + squeeze.flush())

    url, _ = serve(answer)

    async def rollouts():
        actor = Actor(SingleTurnAgentExecutor(url))
        return await asyncio.gather(*[actor.rollout() for _ in range(3)])

    tracemalloc.start()
    try:
        responses = run(rollouts())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [response["reward"] for response in responses] == [0.5] * 3 and peak < 5 * size
    assert reward_server.MOST_BYTES == 64 * MEGABYTE


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_server_is_not_followed(serve, status):
    elsewhere, stolen = serve((200, '{"rewards": 1}', 0))
    url, _ = serve(lambda handler, free: begin(handler, status=status, Location=with_secrets(elsewhere)))
    failure = run(Actor(SingleTurnAgentExecutor(url)).rollout())[ROLLOUT].failure
    assert f"{url} answered {status}, a redirect to another server, which is not followed: use {elsewhere}" in failure
    assert not stolen and not any(secret in failure for secret in SECRETS)


@pytest.mark.parametrize("location", ["//elsewhere/x", "https://127.0.0.1/x", "gopher://x/", "http://[/", "mailto:me"])
def test_a_redirect_to_another_scheme_host_or_port_is_not_followed(serve, location):
    url, payloads = serve(lambda handler, free: begin(handler, status=307, Location=location))
    failure = run(Actor(SingleTurnAgentExecutor(url)).rollout())[ROLLOUT].failure
    assert failure.startswith(f"{url} answered 307, a redirect to ") and len(payloads) == 1


@pytest.mark.parametrize(
    "status, asked_with", [(307, "POST"), (308, "POST"), (301, "GET"), (302, "GET"), (303, "GET")]
)
def test_a_redirect_on_the_same_server_is_followed_as_aiohttp_does(serve, status, asked_with):
    """With the method that unpatched OpenRLHF's client goes on with, and with the password of the named address."""
    seen = []

    def answer(handler, free):
        seen.append((handler.command, handler.path, handler.headers["Authorization"]))
        if len(seen) == 1:
            return begin(handler, status=status, Location="/get_reward/")
        if len(seen) == 2:
            return begin(handler, status=status, Location=url.replace("/get_reward", "/other"))
        begin(handler)
        handler.wfile.write(b'{"rewards": 0.25}')

    url, payloads = serve(answer)
    assert run(Actor(SingleTurnAgentExecutor(with_secrets(url))).rollout())["reward"] == 0.25
    assert [path for _, path, _ in seen] == ["/get_reward?token=query-token", "/get_reward/", "/other"]
    assert [command for command, *_ in seen] == ["POST", asked_with, asked_with]
    assert len({password for *_, password in seen}) == 1 and seen[0][2].startswith("Basic ")
    assert [payload is not None for payload in payloads] == [True, *[asked_with == "POST"] * 2]


def test_a_server_that_redirects_for_ever_is_a_failure(serve):
    url, payloads = serve(lambda handler, free: begin(handler, status=307, Location="/get_reward"))
    assert "redirects more than 5 times" in run(Actor(SingleTurnAgentExecutor(url)).rollout())[ROLLOUT].failure
    assert len(payloads) == 6


@pytest.mark.parametrize(
    "answer, timeout",
    [
        ((500, "", 0), 30),
        ((500, json.dumps({"error": with_secrets("http://upstream/x")}), 0), 30),
        ((200, json.dumps({"error": with_secrets("http://upstream/x")}), 0), 30),
        ((200, "{garbage", 0), 30),
        ((200, '{"rewards": [NaN]}', 0), 30),
        ((200, "{}", 0), 30),
        ((200, '{"rewards": 0}', 20), 0.3),
        (lambda handler, free: begin(handler, status=302, Location=with_secrets("http://elsewhere")), 30),
        (lambda handler, free: begin(handler, Content_Length="5"), 30),  # and ends without them
    ],
)
def test_no_failure_line_has_the_secrets_of_the_url(serve, caplog, capfd, answer, timeout):
    url, _ = serve(answer)
    failure = run(Actor(SingleTurnAgentExecutor(with_secrets(url)), timeout=timeout).rollout())[ROLLOUT].failure
    printed = capfd.readouterr()
    assert "***" in failure
    assert not any(secret in failure + caplog.text + printed.out + printed.err for secret in SECRETS)


@pytest.mark.parametrize(
    "url", ["http://host:port/get", "gopher://host/get", "http://host.invalid/get", "http://[/get"]
)
def test_no_failure_line_of_a_call_that_cannot_be_made_has_them(url):
    user, password, token = SECRETS
    whole = url.replace("//", f"//{user}:{password}@") + f"?token={token}"
    failure = run(Actor(SingleTurnAgentExecutor(whole)).rollout())[ROLLOUT].failure
    assert "***" in failure and not any(secret in failure for secret in SECRETS)

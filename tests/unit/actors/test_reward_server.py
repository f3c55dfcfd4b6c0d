"""Reward servers, real ones on this machine: good, broken and hostile; without Ray or vLLM."""

import asyncio
import json
import socket
import threading
import time
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
from aiohttp import web
from engine_actor import Actor, run
from openrlhf.utils.agent import SingleTurnAgentExecutor

import openrlhf_sagc.actors.reward_server as reward_server
import openrlhf_sagc.actors.rewards as rewards
from openrlhf_sagc.decisions.records import ROLLOUT

SECRETS = ("alice", "pass-word", "query-token")
GIGABYTE = 2**30
MEGABYTE = 2**20


@pytest.fixture
def serve():
    """serve(*answers) -> (url, payloads): answers in turn, the last one for ever.

    An answer is (status, body, seconds before it), or a function that writes it: answer(handler, free), where the event
    `free` ends the test.
    """

    def start(*answers):
        payloads = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def answer(self, payload):
                payloads.append(payload)
                answer = answers[min(len(payloads), len(answers)) - 1]
                if callable(answer):
                    return answer(self, free)
                status, body, seconds = answer
                free.wait(seconds)
                begin(self, status=status)
                self.wfile.write(body.encode())

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.handle_error = lambda *args: None  # a client that has given up
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/get_reward", payloads

    free, servers = threading.Event(), []
    yield start
    free.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def closed_url():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/gone"  # bound, but nobody listens


def begin(handler, status=200, **headers):
    """The head of an answer."""
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def with_secrets(url):
    user, password, token = SECRETS
    return url.replace("http://", f"http://{user}:{password}@") + f"?token={token}"


def test_a_server_is_asked_as_openrlhf_asks(serve):
    url, payloads = serve((200, '{"rewards": [0.5], "scores": [[2]], "extra_logs": {"kept": [1]}}', 0))
    response = run(Actor(SingleTurnAgentExecutor(url)).rollout("label"))
    assert (response["reward"], response["scores"], response["extra_logs"]) == (0.5, 2.0, {"kept": 1.0})
    assert payloads == [{"query": ["8 tokens"], "prompts": ["prompt"], "labels": ["label"]}]


@pytest.mark.parametrize(
    "answer, cause",
    [
        ((500, "", 0), "answered 500 'Internal Server Error'"),
        ((200, "{garbage", 0), "JSONDecodeError: Expecting property name"),
        ((200, "<html>sign in</html>", 0), "JSONDecodeError: Expecting value"),
        ((200, "", 0), "JSONDecodeError: Expecting value"),
        ((200, "[" * 10**6, 0), "RecursionError"),
        ((200, '"0.5"', 0), "returned a str instead of a number or a dict"),
        ((200, '{"error": "no such model"}', 0), "returned no 'rewards' but no such model"),
        ((500, '{"error": "CUDA out of\\n memory"}', 0), "answered 500 'Internal Server Error': CUDA out of memory"),
        ((422, '{"detail": [{"msg": "no label"}]}', 0), "answered 422 'Unprocessable Entity': [{'msg': 'no label'}]"),
        ((400, '{"error": {"message": "too long", "code": 3}}', 0), "answered 400 'Bad Request': too long"),
        ((502, "<html><h1>502 Bad</h1>gateway</html>", 0), "answered 502 'Bad Gateway': 502 Bad gateway"),
        ((500, "Traceback (most recent call last):\n  File\nKeyError: 'gold'\n", 0), "Error': KeyError: 'gold'"),
        ((500, "<" * 10**6, 0), "answered 500 'Internal Server Error': <<<"),
        ((500, "[" * 10**5, 0), "answered 500 'Internal Server Error': [[["),
        ((200, '{"rewards": [NaN]}', 0), "returned reward nan"),
        ((200, '{"rewards": [1e39]}', 0), "returned reward 1e+39"),
        ((200, '{"rewards": [1e999]}', 0), "returned reward inf"),
        ((200, '{"rewards": [0.5, 0.5]}', 0), "returned 2 rewards for 1 sample"),
        ((200, '{"rewards": []}', 0), "returned 0 rewards for 1 sample"),
        ((200, '{"rewards": [0.5]}', 20), "did not answer within 1 s"),
    ],
)
def test_the_failure_line_names_the_server_and_the_cause(serve, answer, cause):
    url, payloads = serve(answer)
    response = run(Actor(SingleTurnAgentExecutor([url]), timeout=1 if "1 s" in cause else 30, retries=1).rollout())
    assert cause in response[ROLLOUT].failure and url in response[ROLLOUT].failure
    assert "\n" not in response[ROLLOUT].failure and response["reward"] is None and len(payloads) == 2


def test_a_server_that_is_gone(closed_url):
    failure = run(Actor(SingleTurnAgentExecutor(closed_url)).rollout())[ROLLOUT].failure
    assert failure.startswith("ClientConnectorError: Cannot connect to host") and closed_url in failure


def test_a_server_that_recovers_gives_its_reward(serve):
    url, payloads = serve((503, "", 0), (200, '{"rewards": [1]}', 0))
    response = run(Actor(SingleTurnAgentExecutor(url), retries=1).rollout())
    assert response["reward"] == 1.0 and response[ROLLOUT].failure is None and len(payloads) == 2


def test_every_attempt_goes_to_the_next_server(serve, closed_url):
    url, payloads = serve((200, '{"rewards": 1}', 0))
    response = run(Actor(SingleTurnAgentExecutor([closed_url, url]), retries=1).rollout())
    assert response["reward"] == 1.0 and len(payloads) == 1


@pytest.mark.parametrize("body", ["0.5", "[0.5]", "[[0.5]]"])
def test_a_bare_number_is_the_reward(serve, body):
    assert run(Actor(SingleTurnAgentExecutor(serve((200, body, 0))[0])).rollout())["reward"] == 0.5


def test_a_server_that_comes_up_late_costs_no_attempt(monkeypatch):
    """A real server that listens a second after it was asked first; there is one attempt, and its reward is there."""
    monkeypatch.setattr(rewards, "PATIENCE", 60.0)
    monkeypatch.setattr(rewards, "LONGEST_PAUSE", 0.2)
    asked = []

    async def answer(request):
        asked.append(await request.json())
        return web.json_response({"rewards": [0.75]})

    async def rollouts():
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/get_reward"
            actor = Actor(SingleTurnAgentExecutor(url), retries=0)
            early = [asyncio.create_task(actor.rollout()) for _ in range(40)]
            await asyncio.sleep(1)
            assert not any(rollout.done() for rollout in early)
            app = web.Application()
            app.router.add_post("/get_reward", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.SockSite(runner, listener).start()
            responses = await asyncio.gather(*early)
            await runner.cleanup()
            return responses

    responses = run(rollouts())
    assert [(response["reward"], response[ROLLOUT].failure) for response in responses] == [(0.75, None)] * 40
    assert len(asked) == 40


def away(handler, free):
    handler.close_connection = True  # and no word


def cut_short(handler, free):
    begin(handler, Content_Length="5")


@pytest.mark.parametrize("answer", [(500, "", 0), (503, "", 0), (429, "", 0), away, cut_short])
def test_a_server_that_is_away_is_asked_again_for_a_minute_and_then_as_often_as_any(serve, monkeypatch, answer):
    """On a clock that moves with the pauses: 30 s away cost no attempt, and after 60 s attempts are counted."""
    now = [1000.0]

    async def pause(attempt, jitter):
        now[0] += min(0.5 * 2.0 ** (attempt - 1), 30.0) if attempt else 0.0

    monkeypatch.setattr(rewards, "PATIENCE", 60.0)
    monkeypatch.setattr(rewards, "pause_before", pause)
    monkeypatch.setattr(rewards, "time", SimpleNamespace(monotonic=lambda: now[0]))
    url, payloads = serve(*[answer] * 6, (200, '{"rewards": 1}', 0))  # back after 31.5 s
    response = run(Actor(SingleTurnAgentExecutor(url), retries=0).rollout())
    assert response["reward"] == 1.0 and now[0] == 1031.5
    now[0] = 1000.0
    url, payloads = serve(answer)
    response = run(Actor(SingleTurnAgentExecutor(url), retries=1).rollout())
    assert response["reward"] is None and url in response[ROLLOUT].failure
    assert len(payloads) == 9 and now[0] == 1091.5  # 31.5 s, 61.5 s and one attempt more


def test_other_failures_are_attempts_and_begin_the_minute_anew(serve, monkeypatch):
    monkeypatch.setattr(rewards, "PATIENCE", 60.0)
    url, payloads = serve((503, "", 0), (200, "{}", 0), (503, "", 0), (200, "{}", 0), (200, '{"rewards": 1}', 0))
    assert run(Actor(SingleTurnAgentExecutor(url), retries=1).rollout())["reward"] is None
    assert len(payloads) == 4


def huge(handler, free, written):
    begin(handler)
    while written[0] < GIGABYTE and not free.is_set():
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


def test_a_slow_server_costs_the_samples_that_it_is_slow_for(serve):
    def answer(handler, free):
        free.wait(20 if payloads[-1]["labels"] == ["slow"] else 0)
        begin(handler)
        handler.wfile.write(b'{"rewards": [1.0]}')

    url, payloads = serve(answer)

    async def rollouts():
        actor = Actor(SingleTurnAgentExecutor(url), timeout=2.0)
        slow = asyncio.create_task(actor.rollout("slow"))
        start = time.monotonic()
        while not payloads:
            await asyncio.sleep(0.01)
        quick = [await actor.rollout("quick") for _ in range(5)]
        return time.monotonic() - start, quick, await slow

    seconds, quick, slow = run(rollouts())
    assert [response["reward"] for response in quick] == [1.0] * 5 and seconds < 2
    assert "did not answer within 2 s" in slow[ROLLOUT].failure


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
    assert url in failure
    assert not any(secret in failure + caplog.text + printed.out + printed.err for secret in SECRETS)


@pytest.mark.parametrize(
    "url", ["http://host:port/get", "gopher://host/get", "http://host.invalid/get", "http://[/get"]
)
def test_no_failure_line_of_a_call_that_cannot_be_made_has_them(url):
    user, password, token = SECRETS
    whole = url.replace("//", f"//{user}:{password}@") + f"?token={token}"
    failure = run(Actor(SingleTurnAgentExecutor(whole)).rollout())[ROLLOUT].failure
    assert url in failure and not any(secret in failure for secret in SECRETS)

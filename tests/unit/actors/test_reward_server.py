"""Reward servers, real ones on this machine: good, broken and hostile; without Ray or vLLM."""

import asyncio
import json
import socket
import threading
import time
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from engine_actor import Actor, run
from openrlhf.utils.agent import SingleTurnAgentExecutor

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
            def do_POST(self):
                payloads.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
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
        ((200, "[0.5]", 0), "returned a list instead of a dict"),
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
        (huge, "sent more than 1 MiB", 64 * MEGABYTE),
        (bomb, "sent more than 1 MiB", MEGABYTE),
        (trickle, "did not answer within 2 s", 100),
    ],
)
def test_a_hostile_server_costs_its_sample_and_little_memory(serve, hostile, cause, most_written):
    """Four samples of which it is hostile to one; the others have their rewards."""
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


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(serve, status):
    elsewhere, stolen = serve((200, '{"rewards": 1}', 0))
    url, _ = serve(lambda handler, free: begin(handler, status=status, Location=elsewhere))
    response = run(Actor(SingleTurnAgentExecutor(url)).rollout())
    assert f"{url} answered {status} " in response[ROLLOUT].failure and not stolen
    assert response[ROLLOUT].failure.endswith(", a redirect, which is not followed")


@pytest.mark.parametrize(
    "answer, timeout",
    [
        ((500, "", 0), 30),
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

"""How often and how long reward servers are asked again, real ones on this machine; without Ray or vLLM."""

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import aiohttp
import pytest
from engine_actor import Actor, run
from openrlhf.utils.agent import SingleTurnAgentExecutor
from reward_servers import begin

import openrlhf_sagc.engine.reward_server as reward_server
import openrlhf_sagc.engine.rewards as rewards
from openrlhf_sagc.decisions.records import ROLLOUT

REWARD = (200, '{"rewards": 1}')


@pytest.fixture
def asked(serve, monkeypatch):
    """asked(*answers) -> the response, and the seconds at which the server was asked, on a clock that moves with the pauses.

    An answer is (status, body) and its headers; without a status the server ends the connection without a word, or in the
    middle of the body. `jitter` is 1 for the longest pauses and 0 for the shortest.
    """
    now, next_turn = [1000.0], asyncio.sleep

    async def sleep(seconds):
        now[0] += seconds
        await next_turn(0)

    for name, seconds in (("PAUSE", 0.5), ("PATIENCE", 60.0), ("LEAST", 4.0), ("SOON", 0.5)):
        monkeypatch.setattr(rewards, name, seconds)
    monkeypatch.setattr(rewards, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(rewards, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def ask(*answers, retries=2, timeout=180.0, jitter=1.0):
        times, number, start = [], itertools.count(), now[0]

        def answer(handler, free):
            times.append(now[0] - start)
            status, body, *headers = answers[min(next(number), len(answers) - 1)]
            if status:
                begin(handler, status=status, **dict(headers))
                handler.wfile.write(body.encode())
            elif body:
                begin(handler, Content_Length="5")
            else:
                handler.close_connection = True

        actor = Actor(SingleTurnAgentExecutor(serve(answer)[0]), retries=retries, timeout=timeout)
        actor.executor._jitter.uniform = lambda low, high: low + (high - low) * jitter
        return run(actor.rollout()), times

    return ask


@pytest.mark.parametrize("answer", [(500, ""), (503, ""), (429, ""), (None, ""), (None, "cut")])
def test_a_server_that_is_away_is_asked_again_for_a_minute_and_then_as_often_as_any(asked, answer):
    response, times = asked(*[answer] * 14, REWARD, retries=0)
    assert response["reward"] == 1.0 and times[8:] == [4, 4.5, 5.5, 7.5, 11.5, 19.5, 35.5]
    response, times = asked(answer, retries=1)
    assert response["reward"] is None and "get_reward" in response[ROLLOUT].failure
    assert times[14:] == [35.5, 65.5, 95.5]  # and one attempt more


def test_other_failures_are_attempts_and_begin_the_minute_anew(asked, monkeypatch):
    monkeypatch.setattr(rewards, "LEAST", 0.0)
    answers = [(503, "")] * 6 + [(200, "{}"), (503, ""), (200, "{}")]
    assert asked(*answers, REWARD, retries=2)[0]["reward"] == 1.0
    assert asked(*answers, REWARD, retries=1)[0]["reward"] is None


@pytest.mark.parametrize("jitter", [0.0, 1.0])
@pytest.mark.parametrize("answer", [(404, ""), (403, "no"), (408, ""), (425, ""), (301, ""), (200, "{loading")])
def test_any_error_of_a_server_is_asked_again_for_four_seconds(asked, answer, jitter):
    """OpenRLHF asks five times, a second apart; attempts come on top."""
    response, times = asked(answer, retries=0, jitter=jitter)
    assert response["reward"] is None and times[-1] == 4 and len(times) == (9 if jitter else 17)
    assert asked(*[answer] * (len(times) - 1), REWARD, retries=0, jitter=jitter)[0]["reward"] == 1.0
    response, more = asked(answer, retries=2, jitter=jitter)
    assert response["reward"] is None and len(more) == len(times) + 2


@pytest.mark.parametrize("status", [400, 401, 413, 422])
def test_a_request_that_is_rejected_is_asked_again_for_no_longer(asked, status):
    response, times = asked((status, "first line\nsecond line"), retries=9)
    assert times[-2:] == [3.5, 4] and response[ROLLOUT].failure.endswith(": first line")
    assert asked(*[(status, "")] * 4, REWARD, retries=0)[0]["reward"] == 1.0


@pytest.mark.parametrize("body", ['"0.5"', "null", '{"rewards": [0.5, 0.5]}', '{"rewards": []}', "[0.5, 0.5]"])
def test_an_answer_that_can_be_no_reward_is_asked_for_once(asked, body):
    response, times = asked((200, body), REWARD)
    assert response["reward"] is None and times == [0]


@pytest.mark.parametrize("status, seconds, pause", [(429, 7, 7), (404, 20, 20), (503, 86400, 50), (429, "soon", 0)])
def test_a_server_says_when_it_wants_to_be_asked_again(asked, status, seconds, pause):
    """Its word is kept up to the time that a request may take."""
    for jitter in (0.0, 1.0):
        response, times = asked((status, "", ("Retry_After", str(seconds))), REWARD, timeout=50.0, jitter=jitter)
        assert response["reward"] == 1.0 and max(pause, 0.25) <= times[1] <= max(pause + 0.5, 1.0)


@pytest.mark.parametrize(
    "value, date, seconds",
    [
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 30),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "Wed, 21 Oct 2015 07:29:00 GMT", 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", None, 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "today", 0),
        ("Wed, 21 Oct 2015 07:28:30 -0000", "Wed, 21 Oct 2015 07:28:00 GMT", 0),  # without a zone
        ("9" * 5000, None, float("inf")),
        (" 7 ", None, 7),
        ("-5", None, 0),
        ("nan", None, 0),
    ],
)
def test_seconds_that_a_server_asks_for(value, date, seconds):
    headers = {"Retry-After": value} | ({"Date": date} if date else {})
    assert reward_server._retry_after(headers) == seconds


def test_as_many_requests_are_out_as_a_server_holds():
    """They wait in their order; one that is given up gives its turn to the next, and each answer lets one more out."""

    async def check():
        backlog, turns = reward_server.Backlog(), []

        async def ask(number):
            await backlog.enter()
            turns.append(number)

        async def turn():
            for _ in range(5):
                await asyncio.sleep(0)
            return turns

        for number in range(20):
            await ask(number)
        for _ in range(18):
            backlog.leave(full=True)
        asking = [asyncio.create_task(ask(number)) for number in range(20, 40)]
        assert len(await turn()) == 20
        asking[1].cancel()
        backlog.leave(full=False)  # one of two has its answer: three may be out
        assert (await turn())[20:] == [20, 22]
        backlog.leave(full=True)
        assert len(await turn()) == 22
        backlog.leave(full=False)
        asking[3].cancel()  # in its turn
        assert turns[22:] == [] and (await turn())[22:] == [24, 25]
        for _ in range(40):
            backlog.leave(full=False)
            await turn()
        assert sorted(turns[20:]) == [number for number in range(20, 40) if number not in (21, 23)]

    run(check())


def test_a_way_that_is_slow_gets_its_connection_in_the_end(monkeypatch):
    """To a listener without room, so that no try succeeds: each takes twice as long as the one before."""
    tries = []

    def limits(total, sock_connect):
        tries.append(sock_connect)
        return aiohttp.ClientTimeout(total=total, sock_connect=sock_connect)

    monkeypatch.setattr(reward_server, "CONNECT", 0.05)
    monkeypatch.setattr(reward_server, "aiohttp", SimpleNamespace(**vars(aiohttp) | {"ClientTimeout": limits}))
    with socket.socket() as listener, contextlib.ExitStack() as others:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        response = run(Actor(SingleTurnAgentExecutor(url), timeout=2.0).rollout())
    assert "did not answer within 2 s" in response[ROLLOUT].failure and tries[:4] == [0.05, 0.1, 0.2, 0.4]


def test_a_full_backlog_is_waited_for(monkeypatch):
    """A server of one thread, which begins late: it is busy and not away, though it takes no connection for long."""
    monkeypatch.setattr(reward_server, "CONNECT", 0.3)
    free = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            free.wait(20)
            begin(self)
            self.wfile.write(b'{"rewards": 0.5}')

        def log_message(self, *args):
            pass

    class OneThread(HTTPServer):
        request_queue_size = 1

    async def rollouts():
        actor = Actor(SingleTurnAgentExecutor(f"http://127.0.0.1:{server.server_port}"), retries=0)
        asked = [asyncio.create_task(actor.rollout()) for _ in range(12)]
        await asyncio.sleep(1.5)
        free.set()
        return await asyncio.gather(*asked)

    with OneThread(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        responses = run(rollouts())
        server.shutdown()
    assert [(response["reward"], response[ROLLOUT].failure) for response in responses] == [(0.5, None)] * 12


def test_a_connection_that_this_process_was_too_busy_to_see_finds_no_full_backlog(serve, monkeypatch):
    """All requests are out together again, where the event loop was held up for longer than a connection may take."""
    monkeypatch.setattr(reward_server, "CONNECT", 0.5)
    together, ask, stalls = threading.Barrier(16), reward_server._ask, [1.0]

    def answer(handler, free):
        together.wait(10)
        begin(handler)
        handler.wfile.write(b'{"rewards": 0.5}')

    async def stalled(*args):
        if stalls:
            asyncio.get_running_loop().call_soon(time.sleep, stalls.pop())
        return await ask(*args)

    async def rollouts():
        actor = Actor(SingleTurnAgentExecutor(url), retries=0)
        return await asyncio.gather(*[actor.rollout() for _ in range(16)])

    monkeypatch.setattr(reward_server, "_ask", stalled)
    url, _ = serve(answer)
    assert [response["reward"] for response in run(rollouts())] == [0.5] * 16

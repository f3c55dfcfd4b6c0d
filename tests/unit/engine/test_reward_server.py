"""Reward servers, real ones on this machine: good, broken and hostile; without Ray or vLLM."""

import asyncio
import socket
from http import HTTPStatus

import pytest
from aiohttp import web
from engine_actor import Actor, run
from openrlhf.utils.agent import SingleTurnAgentExecutor

import openrlhf_sagc.engine.rewards as rewards
from openrlhf_sagc.decisions.records import ROLLOUT

FINAL = ("returned a ", "returned 0 ", "returned 2 ", "answered 422", "answered 400", "answered 413")


@pytest.fixture
def closed_url():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/gone"  # bound, but nobody listens


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
        (
            (422, '{"detail": [{"msg": "no label"}]}', 0),
            f"answered 422 '{HTTPStatus(422).phrase}': [{{'msg': 'no label'}}]",
        ),
        ((400, '{"error": {"message": "too long", "code": 3}}', 0), "answered 400 'Bad Request': too long"),
        (
            (502, "<html>\n<h1>502 Bad</h1>gateway\n<hr>nginx</html>", 0),
            "answered 502 'Bad Gateway': 502 Bad gateway.",
        ),
        (
            (413, "\nToo long: 9 tokens\nsee the manual", 0),
            f"answered 413 '{HTTPStatus(413).phrase}': Too long: 9 tokens.",
        ),
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
    assert cause in response[ROLLOUT].failure + "." and url in response[ROLLOUT].failure
    assert "\n" not in response[ROLLOUT].failure and response["reward"] is None
    assert len(payloads) == (1 if cause.startswith(FINAL) else 2)


def test_a_server_that_is_gone(closed_url):
    failure = run(Actor(SingleTurnAgentExecutor(closed_url)).rollout())[ROLLOUT].failure
    assert failure.startswith("ClientConnectorError: Cannot connect to host") and closed_url in failure


def test_every_attempt_goes_to_the_next_server(serve, closed_url):
    url, payloads = serve((200, '{"rewards": 1}', 0))
    response = run(Actor(SingleTurnAgentExecutor([closed_url, url]), retries=1).rollout())
    assert response["reward"] == 1.0 and len(payloads) == 1


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

"""Rewards in the engine's actor, without Ray or vLLM: functions, HTTP servers and agents that fail."""

import asyncio
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from engine_actor import UNFINISHED_FIELDS, Actor, Agent, calls, run
from openrlhf.utils.agent import SingleTurnAgentExecutor

import openrlhf_sagc.actors.rewards as rewards
from openrlhf_sagc.decisions.records import ROLLOUT

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def serve():
    """serve(*answers) -> (url, payloads): answers (status, body, seconds) in turn, the last one for ever."""

    def start(*answers):
        payloads = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                payloads.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, body, seconds = answers[min(len(payloads), len(answers)) - 1]
                free.wait(seconds)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
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


@pytest.mark.parametrize(
    "reward", ["torch.tensor([0.5])", "torch.tensor(0.5)", "[torch.tensor([0.5])]", "numpy.float32(0.5)", "[[0.5]]"]
)
def test_one_number_of_any_kind_is_a_reward(reward_file, reward):
    body = f"return dict(rewards={reward}, scores=True, extra_logs={{'kept': labels}})"
    response = run(Actor(reward_file(body)).rollout("label"))
    assert (response["reward"], response["scores"]) == (0.5, 1.0)
    assert type(response["reward"]) is type(response["scores"]) is float
    assert response["extra_logs"] == {"kept": ["label"]} and response[ROLLOUT].failure is None


@pytest.mark.parametrize(
    "body, failure",
    [
        ("raise ValueError('no\\n  answer')", "ValueError: no answer (reward.py:5)"),
        ("raise ValueError('long ' * 200)", "ValueError: " + "long " * 60 + " (reward.py:5)"),
        ("next(iter([]))", "StopIteration:  (reward.py:5)"),
        ("raise SystemExit(3)", "SystemExit: 3 (reward.py:5)"),
        ("return dict(rewards=float('nan'))", "the reward function returned reward nan"),
        ("return dict(rewards=torch.tensor([float('inf')]))", "the reward function returned reward inf"),
        ("return dict(rewards=0.0, scores=float('nan'))", "the reward function returned score nan"),
        ("return dict(rewards=[0.5, 1.0])", "the reward function returned 2 rewards for 1 sample"),
        ("return dict(rewards=torch.tensor([]))", "the reward function returned 0 rewards for 1 sample"),
        ("return dict(rewards=None)", "the reward function returned reward None"),
        ("return dict(rewards='0.5')", "the reward function returned reward '0.5'"),
        ("return dict(reward=0.5)", "the reward function returned no 'rewards' but ['reward']"),
        ("return [0.5]", "the reward function returned a list instead of a dict"),
        ("free.wait(20)", "the reward function did not answer within 0.3 s"),
    ],
)
def test_the_failure_line_says_what_the_function_did(reward_file, body, failure):
    executor = reward_file(body)
    response = run(Actor(executor, timeout=0.3 if "0.3 s" in failure else 30, retries=1).rollout())
    assert response[ROLLOUT].failure == failure
    assert response["reward"] is None and response["scores"] is None and not response[ROLLOUT].stopped
    assert response[ROLLOUT].tokens == 5 and len(response["observation_tokens"]) == 8
    assert len(calls(executor)) == 2


def test_a_function_that_recovers_gives_its_reward(reward_file):
    response = run(Actor(reward_file("return dict(rewards=[0.0] if len(calls) > 2 else 1 / 0)"), retries=2).rollout())
    assert response["reward"] == 0.0 and response[ROLLOUT].failure is None


def test_hung_calls_neither_block_others_nor_count_their_wait(reward_file, monkeypatch):
    monkeypatch.setattr(rewards.os, "cpu_count", lambda: 1)  # 5 threads
    executor = reward_file("free.wait(20) if labels[0] else time.sleep(0.02)\n    return dict(rewards=1.0)")

    async def rollouts():
        actor = Actor(executor, timeout=3.0)
        return await asyncio.gather(*(actor.rollout(label=number < 5) for number in range(45)))

    responses = run(rollouts())
    failures = [response[ROLLOUT].failure for response in responses]
    assert failures == ["the reward function did not answer within 3 s"] * 5 + [None] * 40
    assert max(response[ROLLOUT].seconds for response in responses[5:]) > 3.0  # waited longer than a call may take


def test_a_function_that_hangs_again_and_again_is_called_no_more(reward_file, monkeypatch):
    while threads():  # those of other tests end
        time.sleep(0.01)
    monkeypatch.setattr(rewards, "MOST_THREADS", 3)
    executor = reward_file("free.wait(20)")

    async def rollouts():
        actor = Actor(executor, timeout=0.2, retries=0)
        return [(await actor.rollout())[ROLLOUT].failure for _ in range(5)]

    failures = run(rollouts())
    hang = "3 calls of the reward function hang, so that no more are made"
    assert failures == ["the reward function did not answer within 0.2 s"] * 3 + [hang] * 2
    assert len(calls(executor)) == 3


def threads():
    return sum(thread.name == rewards.THREAD for thread in threading.enumerate())


def test_a_server_is_asked_as_openrlhf_asks(serve):
    url, payloads = serve((200, '{"rewards": [0.5], "scores": [[2]], "extra_logs": {"kept": [1]}}', 0))
    response = run(Actor(SingleTurnAgentExecutor(url)).rollout("label"))
    assert (response["reward"], response["scores"], response["extra_logs"]) == (0.5, 2.0, {"kept": [1]})
    assert payloads == [{"query": ["8 tokens"], "prompts": ["prompt"], "labels": ["label"]}]


@pytest.mark.parametrize(
    "answer, cause",
    [
        ((500, "", 0), "ClientResponseError: 500, message='Internal Server Error'"),
        ((200, "{garbage", 0), "JSONDecodeError: Expecting property name"),
        ((200, "[0.5]", 0), "returned a list instead of a dict"),
        ((200, '{"rewards": [NaN]}', 0), "returned reward nan"),
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


def test_an_agent_that_recovers_gives_its_response():
    response = run(Actor(Agent(OSError("tool"), float("nan"), torch.tensor([1])), retries=2).rollout())
    assert (response["reward"], response[ROLLOUT].tokens, response[ROLLOUT].failure) == (1.0, 6, None)
    assert response[ROLLOUT].queue_seconds == pytest.approx(0.9)


@pytest.mark.parametrize(
    "attempt, failure",
    [
        (ValueError("no tool"), "ValueError: no tool (engine_actor.py:"),
        (None, "the agent returned reward None"),
        (float("nan"), "the agent returned reward nan"),
        (asyncio.CancelledError("by a tool's client"), "CancelledError: by a tool's client (engine_actor.py:"),
    ],
)
def test_an_agent_without_a_reward_is_a_failure(attempt, failure):
    agent = Agent(attempt, attempt, "not tried")
    response = run(Actor(agent, retries=1).rollout("label"))
    assert response[ROLLOUT].failure.startswith(failure)
    assert response.keys() == UNFINISHED_FIELDS and response["label"] == "label"
    assert not response[ROLLOUT].stopped and not response[ROLLOUT].finished  # so that it has no length yet
    assert response[ROLLOUT].tokens in (5, 6)
    assert next(agent.attempts) == "not tried"


def test_an_agent_on_openrlhfs_rewards_is_not_rerun_for_them(reward_file):
    """Its reward has had its attempts, and the response is there; one that makes do with another reward is fine."""

    class MakesDo(SingleTurnAgentExecutor):
        async def execute(self, *args, label, **kwargs):
            response = await super().execute(*args, label=label, **kwargs)
            return {**response, "reward": label, "scores": label}

    body = "raise ValueError('no answer')"
    path = reward_file(body).reward_endpoints[0]
    executor = MakesDo(path)
    response = run(Actor(executor, retries=1).rollout(None))
    assert response[ROLLOUT].failure == "ValueError: no answer (reward.py:5)" and response[ROLLOUT].tokens == 5
    assert "observation_tokens" in response and len(calls(executor)) == 2
    response = run(Actor(MakesDo(path)).rollout(0.25))
    assert response["reward"] == 0.25 and response[ROLLOUT].failure is None


def test_an_agent_that_fetches_rewards_in_its_own_way_keeps_it(reward_file):
    class Own(SingleTurnAgentExecutor):
        async def _fetch_rewards_via_func(self, queries, prompts, labels):
            return [{"rewards": 0.75}]

    assert run(Actor(Own(reward_file("pass").reward_endpoints[0])).rollout())["reward"] == 0.75

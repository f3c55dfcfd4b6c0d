"""Rollouts in the engine's actor without Ray or vLLM: OpenRLHF's executor, real reward files and HTTP servers."""

import asyncio
import itertools
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor

import openrlhf_sagc.engine as engine
from openrlhf_sagc.engine import RolloutExecutor, stop_rollouts, watch_rollouts

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

ENDLESS = 10**6  # tokens
STOPPED_FIELDS = {"prompt", "label", "images", "seconds", "queue_seconds", "tokens", "stopped", "failure"}


class Actor:
    """OpenRLHF's engine actor: vLLM takes `submit` seconds to register a request and 5 ms for each token."""

    kind = "engine"

    def __init__(self, executor, submit=0.0, statistics=True, timeout=5.0, retries=0):
        self.executor = executor
        self.submit, self.statistics = submit, statistics
        self.requests = {}
        self.llm = SimpleNamespace(
            errored=False, abort=self._abort, output_processor=SimpleNamespace(request_states=self.requests)
        )
        self._numbers = itertools.count()
        watch_rollouts(self, timeout=timeout, retries=retries)

    async def _abort(self, request_ids, internal):
        assert internal
        for request_id in request_ids:
            self.requests.pop(request_id).set()

    async def generate(self, tokens, sampling_params, multi_modal_data=None):
        await asyncio.sleep(self.submit)
        number, aborted, token_ids = next(self._numbers), asyncio.Event(), []
        self.requests[number] = aborted
        while len(token_ids) < sampling_params.max_tokens and not aborted.is_set():
            await asyncio.sleep(0.005)
            token_ids.append(7)
        self.requests.pop(number, None)
        reason = "abort" if aborted.is_set() else "stop"
        output = SimpleNamespace(token_ids=token_ids, text="text", finish_reason=reason, logprobs=None)
        stats = SimpleNamespace(queued_ts=5.0, scheduled_ts=5.3) if self.statistics else None
        return SimpleNamespace(outputs=[output], metrics=stats)

    def rollout(self, label="", max_tokens=5):
        return self.executor.execute(
            prompt="prompt",
            label=label,
            sampling_params=SimpleNamespace(max_tokens=max_tokens, logprobs=None),
            max_length=2 * ENDLESS,
            hf_tokenizer=Tokenizer(),
            llm_engine=self,
            images=None,
        )

    async def stopped_when(self, condition, rollouts):
        """The rollouts' responses, all stopped once `condition` holds; and nothing of them is left."""
        tasks = [asyncio.ensure_future(rollout) for rollout in rollouts]
        while not condition():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        await asyncio.to_thread(stop_rollouts, self)  # as Ray does
        responses = await asyncio.wait_for(asyncio.gather(*tasks), 1)
        for response in responses:
            assert response["stopped"] and response["failure"] is None and response.keys() == STOPPED_FIELDS
        return responses


class Tokenizer:
    def __call__(self, text, add_special_tokens, return_tensors):
        return {"input_ids": torch.tensor([[1, 2, 3]])}

    def decode(self, tokens, skip_special_tokens):
        return f"{len(tokens)} tokens"


class Agent:
    """Executor whose `attempts` say what each call does after one request: an exception, or the reward returned."""

    def __init__(self, *attempts):
        self.attempts = iter(attempts)

    async def execute(self, prompt, sampling_params, llm_engine, **kwargs):
        assert llm_engine.kind == "engine"
        output = await llm_engine.generate([1, 2], sampling_params)
        attempt = next(self.attempts)
        if isinstance(attempt, Exception):
            raise attempt
        tokens = output.outputs[0].token_ids
        return {"prompt": prompt, "reward": attempt, "action_ranges": [(2, 2 + len(tokens)), (9, 10)]}


def run(coroutine):
    """Its result; fails where it hangs."""
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def until(condition):
    """The condition as a function that fails after a second."""
    end = time.monotonic() + 1

    def check():
        assert time.monotonic() < end
        return condition()

    return check


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(engine, "PAUSE", 0.01)


@pytest.fixture
def reward_file(tmp_path):
    """reward_file(body) -> executor with a reward function of this body; its module's names are in `reward_func`."""

    def make(body):
        path = tmp_path / "reward.py"
        text = "import time, threading, numpy, torch\nfree, calls = threading.Event(), []\n"
        path.write_text(text + f"def reward_func(queries, prompts, labels):\n    calls.append(labels)\n    {body}\n")
        executor = SingleTurnAgentExecutor(str(path))
        modules.append(executor.reward_func.__globals__)
        return executor

    modules = []
    yield make
    for module in modules:
        module["free"].set()


def calls(executor):
    return executor.reward_func.__globals__["calls"]


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


# Seconds, tokens and a reward that is there


def test_rollouts_side_by_side_have_their_own_seconds():
    class TwoTurns(Agent):
        async def execute(self, label, llm_engine, **kwargs):
            for _ in range(2):
                await llm_engine.generate([1], kwargs["sampling_params"], multi_modal_data=None)
                await asyncio.sleep(label)  # the tool
            return {"reward": 1.0, "action_ranges": [(1, 6), (9, 14)]}

    async def group():
        actor = Actor(TwoTurns())
        return await asyncio.gather(actor.rollout(0.0), actor.rollout(0.2))

    quick, slow = run(group())
    assert quick["reward"] == 1.0 and not quick["stopped"] and quick["failure"] is None
    assert quick["tokens"] == slow["tokens"] == 10
    assert 0.05 <= quick["seconds"] < 0.4 <= slow["seconds"]
    assert quick["queue_seconds"] == slow["queue_seconds"] == pytest.approx(0.6)


def test_without_statistics_nothing_counts_as_queued():
    assert run(Actor(Agent(1.0), statistics=False).rollout())["queue_seconds"] == 0.0


def test_openrlhfs_multi_turn_executor_runs_as_it_is():
    class Instance(AgentInstanceBase):
        def __init__(self):
            self.turn = 0

        async def step(self, states):
            self.turn += 1
            return {"rewards": torch.tensor(0.5), "environment_feedback": "go on", "done": self.turn == 2}

    class FiveTokens(MultiTurnAgentExecutor):
        async def execute(self, *args, llm_engine, **kwargs):
            async def generate(tokens, sampling_params, multi_modal_data):
                sampling_params.max_tokens = 5
                return await llm_engine.generate(tokens, sampling_params, multi_modal_data)

            return await super().execute(*args, llm_engine=SimpleNamespace(generate=generate), **kwargs)

    response = run(Actor(FiveTokens(Instance)).rollout())
    assert response["reward"] == 1.0 and response["failure"] is None
    assert response["tokens"] == 10 and response["action_ranges"] == [(3, 8), (11, 16)]


def test_with_a_reward_model_the_engine_gives_no_reward():
    response = run(Actor(SingleTurnAgentExecutor(None)).rollout())
    assert response["reward"] is None and response["failure"] is None and response["tokens"] == 5


def test_watching_twice_is_watching_once():
    actor = Actor(Agent(1.0))
    executor = actor.executor
    watch_rollouts(actor, timeout=1.0, retries=1)
    assert actor.executor is executor and isinstance(executor, RolloutExecutor)


# Rewards of a function


@pytest.mark.parametrize(
    "reward", ["torch.tensor([0.5])", "torch.tensor(0.5)", "[torch.tensor([0.5])]", "numpy.float32(0.5)", "[[0.5]]"]
)
def test_one_number_of_any_kind_is_a_reward(reward_file, reward):
    body = f"return dict(rewards={reward}, scores=True, extra_logs={{'kept': labels}})"
    response = run(Actor(reward_file(body)).rollout("label"))
    assert (response["reward"], response["scores"]) == (0.5, 1.0)
    assert type(response["reward"]) is type(response["scores"]) is float
    assert response["extra_logs"] == {"kept": ["label"]} and response["failure"] is None


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
        ("free.wait(5)", "the reward function did not answer within 0.3 s"),
    ],
)
def test_the_failure_line_says_what_the_function_did(reward_file, body, failure):
    executor = reward_file(body)
    response = run(Actor(executor, timeout=0.3, retries=1).rollout())
    assert response["failure"] == failure
    assert response["reward"] is None and response["scores"] is None and not response["stopped"]
    assert response["tokens"] == 5 and len(response["observation_tokens"]) == 8
    assert len(calls(executor)) == 2


def test_a_function_that_recovers_gives_its_reward(reward_file):
    response = run(Actor(reward_file("return dict(rewards=[0.0] if len(calls) > 2 else 1 / 0)"), retries=2).rollout())
    assert response["reward"] == 0.0 and response["failure"] is None


def test_hung_calls_neither_block_others_nor_count_their_wait(reward_file, monkeypatch):
    monkeypatch.setattr(engine.os, "cpu_count", lambda: 1)  # 5 threads
    executor = reward_file("free.wait(5) if labels[0] else time.sleep(0.02)\n    return dict(rewards=1.0)")

    async def rollouts():
        actor = Actor(executor, timeout=1.0)
        return await asyncio.gather(*(actor.rollout(label=number < 5) for number in range(45)))

    responses = run(rollouts())
    failures = [response["failure"] for response in responses]
    assert failures == ["the reward function did not answer within 1 s"] * 5 + [None] * 40
    assert max(response["seconds"] for response in responses[5:]) > 1.0  # waited longer than a call may take


# Rewards of a server


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
        ((200, '{"rewards": [0.5]}', 5), "did not answer within 0.3 s"),
    ],
)
def test_the_failure_line_names_the_server_and_the_cause(serve, answer, cause):
    url, payloads = serve(answer)
    response = run(Actor(SingleTurnAgentExecutor([url]), timeout=0.3, retries=1).rollout())
    assert cause in response["failure"] and url in response["failure"]
    assert "\n" not in response["failure"] and response["reward"] is None and len(payloads) == 2


def test_a_server_that_is_gone(closed_url):
    failure = run(Actor(SingleTurnAgentExecutor(closed_url)).rollout())["failure"]
    assert failure.startswith("ClientConnectorError: Cannot connect to host") and closed_url in failure


def test_a_server_that_recovers_gives_its_reward(serve):
    url, payloads = serve((503, "", 0), (200, '{"rewards": [1]}', 0))
    response = run(Actor(SingleTurnAgentExecutor(url), retries=1).rollout())
    assert response["reward"] == 1.0 and response["failure"] is None and len(payloads) == 2


def test_every_attempt_goes_to_the_next_server(serve, closed_url):
    url, payloads = serve((200, '{"rewards": 1}', 0))
    response = run(Actor(SingleTurnAgentExecutor([closed_url, url]), retries=1).rollout())
    assert response["reward"] == 1.0 and len(payloads) == 1


# Agents


def test_an_agent_that_recovers_gives_its_response():
    response = run(Actor(Agent(OSError("tool"), float("nan"), torch.tensor([1])), retries=2).rollout())
    assert (response["reward"], response["tokens"], response["failure"]) == (1.0, 6, None)
    assert response["queue_seconds"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    "attempt, failure",
    [
        (ValueError("no tool"), "ValueError: no tool (test_engine.py:"),
        (None, "the agent returned reward None"),
        (float("nan"), "the agent returned reward nan"),
    ],
)
def test_an_agent_without_a_reward_is_a_failure(attempt, failure):
    agent = Agent(attempt, attempt, "not tried")
    response = run(Actor(agent, retries=1).rollout("label"))
    assert response["failure"].startswith(failure)
    assert response.keys() == STOPPED_FIELDS and not response["stopped"] and response["label"] == "label"
    assert response["tokens"] in (5, 6)
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
    assert response["failure"] == "ValueError: no answer (reward.py:5)" and response["tokens"] == 5
    assert "observation_tokens" in response and len(calls(executor)) == 2
    response = run(Actor(MakesDo(path)).rollout(0.25))
    assert response["reward"] == 0.25 and response["failure"] is None


def test_an_agent_that_fetches_rewards_in_its_own_way_keeps_it(reward_file):
    class Own(SingleTurnAgentExecutor):
        async def _fetch_rewards_via_func(self, queries, prompts, labels):
            return [{"rewards": 0.75}]

    assert run(Actor(Own(reward_file("pass").reward_endpoints[0])).rollout())["reward"] == 0.75


@pytest.mark.parametrize("executor, dead", [(SingleTurnAgentExecutor("http://unused"), False), (Agent(1.0), True)])
def test_an_error_of_vllm_ends_the_run(executor, dead):
    actor = Actor(executor, retries=2)
    actor.llm.errored = dead
    requests = []

    async def generate(*args, **kwargs):
        requests.append(args)
        raise ConnectionError("EngineCore died")

    actor.generate = generate
    with pytest.raises(ConnectionError, match="EngineCore died"):
        run(actor.rollout())
    assert len(requests) == 1


# Stopping


def test_stop_while_vllm_generates():
    async def check():
        actor = Actor(SingleTurnAgentExecutor("http://unused"))
        rollouts = [actor.rollout("label", ENDLESS) for _ in range(3)]
        responses = await actor.stopped_when(until(lambda: len(actor.requests) == 3), rollouts)
        assert all(1 <= response["tokens"] < 200 for response in responses)
        assert (responses[0]["prompt"], responses[0]["label"]) == ("prompt", "label")
        assert responses[0]["queue_seconds"] == pytest.approx(0.3)

    run(check())


def test_stop_before_the_request_is_submitted():
    async def check():
        actor = Actor(SingleTurnAgentExecutor("http://unused"), submit=0.2)
        await actor.stopped_when(lambda: True, [actor.rollout(max_tokens=ENDLESS)])

    run(check())


def test_stop_while_the_reward_is_computed(reward_file):
    executor = reward_file("free.wait(5)")

    async def check():
        actor = Actor(executor)
        (response,) = await actor.stopped_when(until(lambda: calls(executor)), [actor.rollout()])
        assert response["tokens"] == 5
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "reward")

    run(check())


def test_stop_between_two_attempts_at_a_reward(reward_file, monkeypatch):
    monkeypatch.setattr(engine, "PAUSE", 30)
    executor = reward_file("raise ValueError")

    async def check():
        actor = Actor(executor, retries=1)
        await actor.stopped_when(until(lambda: calls(executor)), [actor.rollout()])

    run(check())


def test_rollouts_that_begin_during_a_stop_are_stopped_and_later_ones_run(reward_file):
    async def check():
        actor = Actor(reward_file("return dict(rewards=1.0)"), submit=0.2)
        early = asyncio.create_task(actor.rollout(max_tokens=ENDLESS))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(stop_rollouts, actor)
        await asyncio.sleep(0.05)
        late = asyncio.create_task(actor.rollout(max_tokens=ENDLESS))
        assert all(response["stopped"] for response in await asyncio.gather(early, late))
        response = await actor.rollout()
        assert (response["reward"], response["tokens"], response["stopped"]) == (1.0, 5, False)

    run(check())


def test_a_rollout_that_was_queued_all_the_time_has_no_seconds_of_its_own():
    async def check():
        actor = Actor(Agent())
        generate = actor.generate

        async def queued(*args, **kwargs):
            output = await generate(*args, **kwargs)
            output.outputs[0].token_ids, output.metrics = [], SimpleNamespace(queued_ts=0.0, scheduled_ts=0.0)
            return output

        actor.generate = queued
        (response,) = await actor.stopped_when(until(lambda: actor.requests), [actor.rollout(max_tokens=ENDLESS)])
        assert response["seconds"] >= response["queue_seconds"] > 0.015 and response["tokens"] == 0

    run(check())


def test_no_agent_turns_a_stop_into_a_response():
    """One that swallows the end of its request, and one that swallows the end of its tool and works on."""

    class Stubborn(Agent):
        napping = worked_on = False

        async def execute(self, label, llm_engine, sampling_params, **kwargs):
            try:
                await llm_engine.generate([1], sampling_params)
                self.napping = True
                await asyncio.sleep(30)
            except BaseException:
                pass
            if label == "tool":
                await asyncio.sleep(0.3)
                self.worked_on = True
            with pytest.raises(asyncio.CancelledError):
                await llm_engine.generate([1], sampling_params)
            return {"reward": 1.0, "action_ranges": [(1, 2)]}

    async def check():
        agent = Stubborn()
        actor = Actor(agent, retries=3)
        rollouts = [actor.rollout("tool", 5), actor.rollout("request", ENDLESS)]
        await actor.stopped_when(until(lambda: agent.napping), rollouts)
        assert not agent.worked_on and not actor.requests

    run(check())


def test_a_stopped_agent_cleans_up_undisturbed_and_is_not_rerun():
    class Careful(Agent):
        executed = cleaned = 0
        worked_on = False

        async def execute(self, llm_engine, sampling_params, **kwargs):
            self.executed += 1
            try:
                await llm_engine.generate([1], sampling_params)
                await asyncio.sleep(30)
            except Exception:
                self.worked_on = True
            finally:
                await asyncio.sleep(0.05)
                self.cleaned += 1
                raise OSError("the sandbox is gone")

    async def check():
        agent = Careful()
        actor = Actor(agent, retries=1)
        rollouts = [actor.rollout(max_tokens=1), actor.rollout(max_tokens=ENDLESS)]
        await actor.stopped_when(until(lambda: len(actor.requests) == 1), rollouts)
        await asyncio.sleep(0.2)
        assert agent.cleaned == agent.executed == 2 and not agent.worked_on

    run(check())


def test_stopping_before_the_first_rollout_and_between_rollouts_does_nothing():
    async def check():
        actor = Actor(Agent(0.0, 1.0))
        for reward in (0.0, 1.0):
            await asyncio.to_thread(stop_rollouts, actor)
            await asyncio.sleep(0.02)
            assert (await actor.rollout())["reward"] == reward

    run(check())


def test_an_error_of_the_stop_is_logged(caplog):
    async def check():
        actor = Actor(SingleTurnAgentExecutor("http://unused"))
        actor.llm.abort = None
        task = asyncio.create_task(actor.rollout(max_tokens=20))
        await asyncio.sleep(0.02)
        await asyncio.to_thread(stop_rollouts, actor)
        assert (await task)["stopped"]

    run(check())
    assert "'NoneType' object is not callable" in caplog.text


def test_a_cancelled_rollout_is_cancelled_inside():
    class Waiting(Agent):
        state = None

        async def execute(self, **kwargs):
            self.state = "waiting"
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.state = "cancelled"
                raise

    async def check():
        agent = Waiting()
        actor = Actor(agent, retries=1)
        task = asyncio.create_task(actor.rollout())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.02)
        assert agent.state == "cancelled"
        await actor.executor.stop()

    run(check())

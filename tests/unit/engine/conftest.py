"""For the tests of what runs in an engine's actor."""

import pytest
from openrlhf.utils.agent import SingleTurnAgentExecutor
from reward_servers import serve  # noqa: F401

import openrlhf_sagc.engine.rewards as rewards


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


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(rewards, "PAUSE", 0.01)
    monkeypatch.setattr(rewards, "PATIENCE", 0.0)  # tests of servers that come back set their own
    monkeypatch.setattr(rewards, "LEAST", 0.0)

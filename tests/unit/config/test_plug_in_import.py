"""Whether OpenRLHF can call what a file has, as far as its names and signatures say."""

from types import ModuleType

import pytest

from openrlhf_sagc.config.plug_in_import import AGENT, REWARD, problem_of

REWARDS = {
    "def reward_func(queries, prompts, labels): ...": "",
    "def reward_func(queries, prompts, labels, **kwargs): ...": "",
    "def reward_func(*args): ...": "",
    "def reward_func(queries, prompts, labels=None, extra=1): ...": "",
    "reward_func = lambda q, p, l: 0": "",
    "class R:\n    def __call__(self, q, p, l): ...\nreward_func = R()": "",
    "import functools\ndef f(scale, q, p, l): ...\nreward_func = functools.partial(f, 2)": "",
    "x = 1": "has no reward_func",
    "reward_func = 5": "has a reward_func that is a int, not a function",
    "async def reward_func(queries, prompts, labels): ...": "has an async reward_func, which nobody awaits",
    "class R:\n    async def __call__(self, q, p, l): ...\nreward_func = R()": "has an async reward_func",
    "def reward_func(queries, prompts, labels):\n    yield 1": "has a reward_func with yield",
    "def reward_func(queries): ...": "has a reward_func(queries), which is called as reward_func(queries, prompts, labels)",
    "def reward_func(data_source, solution_str, ground_truth, extra_info): ...": "which is called as reward_func(",
    "def reward_func(*, queries, prompts, labels): ...": "which is called as reward_func(",
}
BASE = "from openrlhf.utils.agent import AgentExecutorBase, AgentInstanceBase, MultiTurnAgentExecutor\n"
EXECUTE = "async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None)"
AGENTS = {
    f"class AgentExecutor(AgentExecutorBase):\n    {EXECUTE}: ...": "",
    "class AgentExecutor(AgentExecutorBase):\n    async def execute(self, prompt, label, **kwargs): ...": "",
    "class AgentExecutor(MultiTurnAgentExecutor):\n    def __init__(self): ...": "",
    "class AgentInstance(AgentInstanceBase): ...": "has no AgentExecutor",
    f"class AgentExecutor:\n    {EXECUTE}: ...": "subclass of openrlhf.utils.agent.AgentExecutorBase",
    "AgentExecutor = 5": "subclass of openrlhf.utils.agent.AgentExecutorBase",
    "class AgentExecutor(AgentExecutorBase):\n    async def run(self): ...": "has an AgentExecutor without execute",
    "class AgentExecutor(MultiTurnAgentExecutor): ...": "has an AgentExecutor(agent_instance_cls), which is made without",
    "class AgentExecutor(MultiTurnAgentExecutor):\n    async def __init__(self): ...": "with an async __init__",
    "class AgentExecutor(AgentExecutorBase):\n    def execute(self, **kwargs): ...": "whose execute is not async",
    "class AgentExecutor(AgentExecutorBase):\n    async def execute(self, prompt, label, sampling_params): ...": (
        "with execute(self, prompt, label, sampling_params), which is called with prompt, label, sampling_params, "
        "max_length, hf_tokenizer, llm_engine, images by their names"
    ),
}

MADE = "class AgentExecutor(MultiTurnAgentExecutor):\n    def __init__(self): super().__init__(AgentInstance)\n"
ENVIRONMENT = "class AgentInstance(AgentInstanceBase):\n    {}\n    {}\n"
INIT, STEP = "def __init__(self, *arguments): ...", "async def step(self, states, **kwargs): ..."
AGENTS |= {
    MADE + ENVIRONMENT.format(INIT, STEP): "",
    MADE + ENVIRONMENT.format("async " + INIT, STEP): "has a class AgentInstance with an async __init__",
    MADE
    + ENVIRONMENT.format(
        "def __init__(self, tokenizer): ...", STEP
    ): "has a class AgentInstance(tokenizer), which is made",
    MADE + ENVIRONMENT.format(INIT, "x = 1"): "has a class AgentInstance without step: define it",
    MADE + ENVIRONMENT.format(INIT, STEP.removeprefix("async ")): "whose step is not async",
    MADE + ENVIRONMENT.format("pass", STEP): "has a class AgentInstance without __init__",
}


@pytest.mark.parametrize("source", REWARDS, ids=range(len(REWARDS)))
def test_rewards(source):
    assert _fits(problem_of(REWARD, _module(source)), REWARDS[source])


@pytest.mark.parametrize("source", AGENTS, ids=range(len(AGENTS)))
def test_agents(source):
    assert _fits(problem_of(AGENT, _module(BASE + source)), AGENTS[source])


def _module(source):
    module = ModuleType("plug_in")
    exec(source, module.__dict__)
    return module


def _fits(problem, line):
    return line in problem and bool(line) == bool(problem)

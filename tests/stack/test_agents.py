"""OpenRLHF's kinds of agents on one real vLLM engine (one_engine.py), with stops, tail batching and a hanging tool."""

import pytest
from one_engine import AGENT, SLOW, take_step, unfinished
from real_runs import AGENTS

pytestmark = pytest.mark.stack
TAIL = ["--rollout.tail_batching.enable", "--rollout.tail_batching.method", "stop"]
KINDS = {"single turn": AGENT, "multi turn": AGENTS / "turns_agent.py", "OpenAI server": AGENTS / "openai_server.py"}


@pytest.mark.parametrize("agent", KINDS.values(), ids=KINDS)
def test_an_agent_goes_on_after_its_first_rollout_was_stopped(make_scheduler, engine, agent):
    """Prompt 0 is slow: it is stopped in two short rounds, and trained in full once four prompts wait."""
    labels = [f"{SLOW if i % 5 == 0 else 8} mixed" for i in range(48)]
    scheduler = make_scheduler(labels, *TAIL, reward=("--train.agent_func_path", agent))
    for step in range(4):
        prompts, lengths, metrics, _ = take_step(scheduler)
        assert prompts == [5 * step + i for i in (1, 2, 3, 4)] and max(lengths) <= 9
        assert (metrics["queued_prompts"], metrics["rollout/reward_failures"]) == (step + 1, 0)
        assert unfinished(engine) == 0
    prompts, lengths, metrics, _ = take_step(scheduler)
    assert prompts == [0, 5, 10, 15] and min(lengths) >= SLOW and metrics["rollout/reward_failures"] == 0


@pytest.mark.parametrize("agent", KINDS.values(), ids=KINDS)
def test_the_first_rollouts_of_an_agents_prompt_are_its_group(make_scheduler, engine, agent):
    labels = ["8 mixed"] * 48 if agent == KINDS["multi turn"] else [f"8+{SLOW} mixed"] * 48
    flags = [*TAIL, "--rollout.tail_batching.response_ratio", 1.25]
    scheduler = make_scheduler(labels, *flags, reward=("--train.agent_func_path", agent))
    for _ in range(2):
        _, lengths, metrics, _ = take_step(scheduler)
        assert len(lengths) == 16 and max(lengths) <= 9 and metrics["rollout/reward_failures"] == 0
        assert unfinished(engine) == 0


def test_a_tool_that_hangs_costs_its_sample(make_scheduler):
    """Its group is trained without it; the run goes on, and the reason is in the line that ends one with too many."""
    labels = ["8 hang"] + ["8 mixed"] * 47
    agent = ("--train.agent_func_path", KINDS["multi turn"])
    limits = ["--rollout.agent_timeout", 3, "--reward.max_failure_share", 0.1]
    scheduler = make_scheduler(labels, *limits, reward=agent)
    prompts, lengths, metrics, _ = take_step(scheduler)
    assert len(prompts) == 4 and 0 in prompts and len(lengths) == 15
    assert (metrics["dropped_reward_missing"], metrics["rollout/reward_failures"]) == (0, 1)
    scheduler = make_scheduler(["8 hang"] * 48, *limits, reward=agent)
    with pytest.raises(RuntimeError, match="the agent made no request to the engine for 3 s and did not return"):
        take_step(scheduler)

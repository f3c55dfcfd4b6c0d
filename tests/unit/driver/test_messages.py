"""What a user is told of a step that is short of groups, and of prompts that do not come back."""

from collections import Counter
from types import SimpleNamespace

import pytest

from openrlhf_sagc.decisions.records import Group, Prompt
from openrlhf_sagc.driver.messages import (
    equal_rewards_warning,
    given_up_warning,
    shortfall,
    silence_warning,
    who_waits,
)

FAILURES = SimpleNamespace(first="--reward.remote_url reward.py failed first with E0")
CAP = "--algo.dynamic_filtering_max_gen_batches 10 reached: 40 prompts of 4 samples gave "
SOLVED = "use a larger number, prompts that are solved sometimes"


@pytest.mark.parametrize(
    "at_cap, dropped, advice",
    [
        ("fail", {"all_wrong": 3, "reward_missing": 3}, f"{SOLVED}, or --algo.dynamic_filtering_at_cap keep"),
        ("keep", {"all_wrong": 3}, SOLVED),
        ("fail", {"all_wrong": 3, "reward_missing": 4}, f"repair the reward, {FAILURES.first}"),
    ],
)
def test_the_advice_follows_what_most_groups_were_dropped_for(at_cap, dropped, advice):
    accepted = [SimpleNamespace(samples=[None] * 4)] * (1 if at_cap == "keep" else 2)
    step = SimpleNamespace(dropped=Counter(dropped), dispatched=40, group_size=4, num_groups=4, number=0)
    step.flight = SimpleNamespace(accepted=accepted)
    settings = settings_with(at_cap)
    reasons = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in dropped.items())
    gave = f"{len(accepted)} of the 4 groups of step 1 (dropped: {reasons}): "
    assert shortfall(step, settings, FAILURES) == CAP + gave + advice
    settings.algo.dynamic_filtering_policy = "own.py:Short"
    assert shortfall(step, settings, FAILURES).endswith(advice.replace("are solved sometimes", "own.py:Short keeps"))
    accepted += [SimpleNamespace(samples=[None] * 4)] * 2
    step.num_groups = 4 if at_cap == "keep" else len(accepted)
    assert shortfall(step, settings, FAILURES) == ""


def test_a_step_whose_failed_rewards_leave_ranks_without_a_sample_names_the_reward():
    accepted = [SimpleNamespace(samples=[None] * 2)] * 3
    step = SimpleNamespace(num_groups=3, number=4, flight=SimpleNamespace(accepted=accepted))
    line = f"step 5 has 6 samples with a reward, and training takes 8 at least: repair the reward, {FAILURES.first}"
    assert shortfall(step, settings_with("fail"), FAILURES) == line


def settings_with(at_cap):
    """Of a run on eight ranks."""
    return SimpleNamespace(
        algo=SimpleNamespace(
            dynamic_filtering_at_cap=at_cap,
            dynamic_filtering_max_gen_batches=10,
            dynamic_filtering_policy=None,
            kl=SimpleNamespace(init_coef=0),
        ),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=8),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        reward=SimpleNamespace(remote_url="reward.py"),
        train=SimpleNamespace(agent_func_path=None),
    )


def test_prompts_that_do_not_come_back_are_named():
    first, second = (Group(n, 0, Prompt(text, "", None, 1), 4, 4) for n, text in ((7, "seven"), (9, "nine")))
    running = {group.number: SimpleNamespace(group=group) for group in (second, first)}
    step = SimpleNamespace(number=0, flight=SimpleNamespace(running=running))
    silence = silence_warning(step, 600.0)
    assert silence.startswith("no group of step 1 has come back for 10 minutes, 2 are waited for")
    assert silence.endswith("the first prompt is 'seven'") and given_up_warning(second).endswith(
        "the prompt is 'nine'"
    )


@pytest.mark.parametrize(
    "engines, actors, line",
    [
        (0.0, 0.5, "with 5 GPUs for engines and 3 for actors a step may take 80 % as long"),
        (0.6, 0.0, "with 2 GPUs for engines and 6 for actors a step may take 80 % as long"),
        (0.05, 0.0, "no other split of the 8 GPUs is expected to be much faster"),
    ],
)
def test_who_waits_is_said_with_a_split_that_waits_less(engines, actors, line):
    gpus = SimpleNamespace(num_nodes=1, num_gpus_per_node=4)
    settings = SimpleNamespace(vllm=SimpleNamespace(num_engines=4, tensor_parallel_size=1), actor=gpus)
    said = who_waits(engines, actors, settings)
    assert (
        said.endswith(line) and f"for {100 * engines:.0f} % of the time, the actors for {100 * actors:.0f} %" in said
    )


def test_engines_of_several_gpus_are_split_as_a_whole():
    settings = SimpleNamespace(
        vllm=SimpleNamespace(num_engines=1, tensor_parallel_size=2),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
    )
    assert who_waits(0.0, 0.9, settings).endswith("no other split of the 4 GPUs is expected to be much faster")


def test_equal_rewards_are_counted():
    assert equal_rewards_warning([0.0] * 16).startswith("all 16 rewards of the first step are 0, so")

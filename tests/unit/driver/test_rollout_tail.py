"""Short and long rounds of the scheduler, on the engines of fake_engines.py."""

from collections import Counter

import pytest
from fake_engines import on_close, prompts_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import openrlhf_sagc.driver.rollout as rollout

MIXED = [1.0, 0.0, 1.0, 0.0, 1.0]


def tail(**ratios):
    """Flags of a run of groups of 4 with tail batching, of 5 rollouts in short rounds."""
    ratios = {"response_ratio": 1.25, **ratios}
    flags = {f"rollout__tail_batching__{name}": ratio for name, ratio in ratios.items()}
    return {
        "group_sizes": [4],
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        **flags,
    }


def of(lengths, scores=MIXED):
    return lambda prompt, size: [(lengths(prompt), score) for score in scores[:size]]


def test_slow_prompts_are_left_to_a_long_round(make_generator):
    """Every fifth prompt is slow. Four short rounds of 4 of 5 prompts, then one long round of the four slow ones."""
    generator = make_generator(40, of(lambda prompt: 90 if prompt % 5 == 0 else 10), **tail())
    steps, clocks, long = [], [], []
    for _ in range(5):
        steps.append(prompts_of(generator.generate_samples()[0]))
        clocks.append(generator.ray.clock)
        long.append(generator.metrics["tail_batching/long_round"])
    assert steps == [[1, 2, 3, 4], [6, 7, 8, 9], [11, 12, 13, 14], [16, 17, 18, 19], [0, 5, 10, 15]]
    assert clocks == [10, 20, 30, 40, 130] and long == [0, 0, 0, 0, 1]
    assert generator.metrics["tail_batching/long_share"] == 0.2
    assert generator.metrics["dynamic_filtering/queued_prompts"] == 0


@pytest.mark.parametrize("reward", [0, 1, 30, 500])
def test_a_group_that_only_waits_for_its_rewards_is_trained_and_slow_ones_are_stopped(make_generator, reward):
    """Every fifth prompt is slow. However long rewards take, the slow ones are stopped, at the moment the others are there."""
    generator = make_generator(40, of(lambda prompt: 90 if prompt % 5 == 0 else 10), **tail(response_ratio=1.0))
    generator.ray.reward_ticks = reward
    for step in range(4):
        first = 5 * step
        samples = generator.generate_samples()[0]
        assert prompts_of(samples) == [first + 1, first + 2, first + 3, first + 4]
        assert generator.metrics["dynamic_filtering/aborted"] == 1
        assert generator.metrics["dynamic_filtering/aborted_tokens"] == 4 * 10
        assert generator.metrics["dynamic_filtering/discarded"] == 0
    assert generator.ray.clock == 4 * (10 + reward)


def test_a_group_whose_rewards_fail_is_replaced_after_the_slow_ones_were_stopped(make_generator):
    """Eight prompts of ten are quick, and the first of these has no reward in the end."""

    def respond(prompt, size):
        failure = "E" if prompt == 1 else None
        return [(90 if prompt % 5 == 0 else 10, score, None, failure) for score in MIXED[:size]]

    flags = {"rollout__batch_size": 8, **tail(response_ratio=1.0)}
    generator = make_generator(80, respond, reward__max_failure_share=0.5, **flags)
    generator.ray.reward_ticks = 30
    samples = generator.generate_samples()[0]
    assert prompts_of(samples) == [2, 3, 4, 6, 7, 8, 9, 10]
    assert generator.metrics["dynamic_filtering/aborted"] == 2


def test_engines_are_awake_for_every_round_and_sleep_when_what_was_stopped_is_back(make_generator):
    """A sleeping engine of fake_engines.py takes no rollouts, and none falls asleep with some."""
    slow = of(lambda prompt: 90 if prompt % 5 == 0 else 10)
    generator = make_generator(40, slow, vllm__enable_sleep=True, **tail())
    for _ in range(5):
        generator.generate_samples()
    assert generator.ray.calls == ["wake_up", "sleep"] * 5


def test_the_first_rollouts_of_a_prompt_are_its_group(make_generator):
    """Five rollouts a prompt, one of them slow: it is stopped when four are done."""

    def respond(prompt, size):
        return [(10 + i, float(i % 2), 10.0 + i) for i in range(size - 1)] + [(90, 1.0, 90.0)]

    generator = make_generator(40, respond, **tail(prompt_ratio=1.0))
    samples, *_ = generator.generate_samples()
    assert generator.ray.clock == 13 and prompts_of(samples) == [0, 1, 2, 3]
    assert sorted(made.sample.response_length for made in samples) == sorted([10, 11, 12, 13] * 4)
    assert generator.metrics["dynamic_filtering/aborted_tokens"] == 4 * 13
    assert generator.metrics["dynamic_filtering/queued_prompts"] == 0


def test_without_response_ratio_a_prompt_has_no_more_rollouts_than_its_group(make_generator):
    sizes = set()

    def respond(prompt, size):
        sizes.add(size)
        return [(10, score) for score in MIXED[:size]]

    make_generator(40, respond, **tail(response_ratio=1.0)).generate_samples()
    assert sizes == {4}


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_prompt_of_an_episode_is_trained_once(make_generator, data):
    """Any lengths, ratios and drops, with the run killed and resumed anywhere: no prompt starves, none comes twice."""
    prompts = data.draw(st.integers(8, 40))
    lengths = data.draw(st.lists(st.integers(1, 99), min_size=prompts, max_size=prompts))
    dropped = data.draw(st.sets(st.integers(0, prompts - 1), max_size=prompts // 3))
    ratios = {name: data.draw(st.sampled_from([1.0, 1.25, 2.0])) for name in ("prompt_ratio", "response_ratio")}

    def respond(prompt, size):
        scores = [1.0] * size if prompt in dropped else [float(i % 2) for i in range(size)]
        return [(lengths[prompt], score) for score in scores]

    trained, steps = Counter(), 0  # of (prompt, episode)

    def make():
        generator = make_generator(prompts, respond, True, **tail(**ratios))
        on_close(
            generator,
            lambda step: trained.update((int(group.prompt.text), group.prompt.episode) for group in step.trained),
        )
        return generator

    generator = make()
    for episode in (1, 2):
        exhausted = False
        while not exhausted:
            steps += 1
            *_, exhausted = generator.generate_samples()
            if data.draw(st.booleans()):
                state = generator.state_dict()
                generator = make()
                generator.load_state_dict(state)
        assert {prompt for prompt, of in trained if of == episode} == set(range(prompts)) - dropped
        assert set(trained.values()) == {1}
    assert steps <= 4 * prompts


def test_a_round_that_closes_while_rollouts_could_still_complete_a_group_leaves_it_waiting(make_generator):
    """Prompt 0: three rollouts done, one without a reward, one that runs. It is not dropped for the failure."""

    def respond(prompt, size):
        if prompt:
            return [(10, score) for score in MIXED[:size]]
        return [(3, 1.0), (3, 0.0), (3, 1.0), (3, 0.0, None, "E"), (90, 1.0)][:size]

    generator = make_generator(40, respond, reward__max_failure_share=0.2, **tail())
    assert prompts_of(generator.generate_samples()[0]) == [1, 2, 3, 4]
    assert generator.metrics["dynamic_filtering/dropped_reward_missing"] == 0
    assert [prompt.text for prompt in generator.queue.waiting] == ["0"]


def test_rewards_that_fail_beyond_the_group_cost_nothing(make_generator):
    """Of five rollouts a prompt one has no reward: the group has its four, and the failures are in the log."""
    respond = lambda prompt, size: [(10, 1.0)] * 4 + [(5, 1.0, None, "E")] * (size - 4)  # noqa: E731
    generator = make_generator(40, respond, **tail(prompt_ratio=1.0))
    assert len(generator.generate_samples()[0]) == 16
    assert generator.metrics["rollout/reward_failures"] == 4


def test_prompts_that_must_finish_are_never_stopped(make_generator):
    """Acceptance alternates, so that steps ask for many more prompts than they need."""
    put_back = []

    def respond(prompt, size):
        mixed = prompt // 40 % 2 or prompt % 5 == 0
        return [(5 + prompt * 37 % 83, score) for score in (MIXED if mixed else [1.0] * 5)[:size]]

    generator = make_generator(400, respond, True, **tail(response_ratio=1.0))
    original = generator.queue.put_back
    generator.queue.put_back = lambda prompt: (put_back.append(prompt), original(prompt))
    for _ in range(40):
        generator.generate_samples()
    assert len(put_back) > 40 and not any(prompt.must_finish for prompt in put_back)


def test_without_group_control_nothing_is_said_of_its_flags(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    respond = lambda prompt, size: [(90, score) for score in MIXED[:size]]  # noqa: E731
    make_generator(40, respond, enable=False, **tail()).generate_samples()
    assert not warnings
    make_generator(40, respond, **tail()).generate_samples()
    assert "--rollout.sagc.straggler_ratio" in warnings[0]


def test_a_reward_model_has_no_url_to_name(make_generator):
    generator = make_generator(40, of(lambda prompt: 10), reward__remote_url=None, **tail())
    assert len(generator.generate_samples()[0]) == 16

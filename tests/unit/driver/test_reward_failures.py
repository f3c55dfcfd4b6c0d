"""Samples without a reward: counted, reported once, and the end of a run that has too many."""

import pytest
from fake_engines import MIXED, ONE_SIZE, WRONG, prompts_of

import openrlhf_sagc.driver.rollout as rollout


def test_a_group_with_a_failed_reward_is_dropped_counted_and_replaced(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    failed = lambda prompt: "ValueError: no parse (reward.py:3)" if prompt == 1 else None  # noqa: E731
    respond = lambda prompt, size: [(10, 1.0, 1.0, failed(prompt))] + [(10, float(prompt))] * (size - 1)  # noqa: E731
    generator = make_generator(40, respond, **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [0, 2, 3, 4]
    assert generator.metrics["rollout/reward_failures"] == 1
    assert generator.metrics["dynamic_filtering/dropped_reward_missing"] == 1
    assert warnings == [
        "--reward.remote_url reward.py: 1 of 16 samples have no reward after 3 attempts, first: "
        "ValueError: no parse (reward.py:3)"
    ]


@pytest.mark.parametrize("share, failures, samples", [(0.1, 3, 24), (0.0, 1, 16), (0.2, 13, 64)])
def test_too_many_failed_rewards_end_the_run(make_generator, share, failures, samples):
    respond = lambda prompt, size: [(10, 1.0, 1.0, f"E{prompt}")] + [(10, 1.0)] * (size - 1)  # noqa: E731
    generator = make_generator(40, respond, reward__max_failure_share=share, **ONE_SIZE)
    with pytest.raises(
        RuntimeError, match=rf"{failures} of {samples} samples .* first: E0; --reward.max_failure_share {share:g}"
    ):
        generator.generate_samples()


def test_failed_rewards_are_a_share_of_all_that_the_step_dispatched(make_generator):
    """One of 16 samples fails, in a step that dispatches three times what it trains."""
    scores = lambda prompt: MIXED if prompt % 4 == 0 else WRONG  # noqa: E731
    fails = lambda prompt, i: "E" if prompt % 4 == 1 and i == 0 else None  # noqa: E731
    respond = lambda prompt, size: [  # noqa: E731
        (10, score, 1.0, fails(prompt, i)) for i, score in enumerate(scores(prompt))
    ]
    generator = make_generator(40, respond, filtering=True, **ONE_SIZE)
    generator.generate_samples()
    assert generator.metrics["rollout/reward_failures"] > 0.1 * 16


def test_neither_the_line_that_ends_a_run_nor_its_state_has_the_secrets_of_a_reward_url(make_generator):
    respond = lambda prompt, size: [(10, 1.0, 1.0, "E")] * size  # noqa: E731
    generator = make_generator(
        40, respond, reward__remote_url=["http://user:secret@host/get?token=secret"], **ONE_SIZE
    )
    with pytest.raises(RuntimeError) as error:
        generator.generate_samples()
    assert str(error.value).startswith("--reward.remote_url http://host/get: ") and "secret" not in str(error.value)
    assert "secret" not in repr(generator.state_dict())


def all_fail(prompts):
    """respond() whose rewards fail for these prompts."""
    return lambda prompt, size: [(10, 1.0, 1.0, f"E{prompt}" if prompt in prompts else None)] * size


def test_one_prompt_whose_reward_always_fails_does_not_end_the_run(make_generator):
    generator = make_generator(40, all_fail({2}), **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [0, 1, 3, 4]
    assert generator.metrics["rollout/reward_failures"] == 4
    with pytest.raises(RuntimeError, match="8 of 20 samples have no reward .* first: E2"):
        make_generator(40, all_fail({2, 3}), **ONE_SIZE).generate_samples()
    with pytest.raises(RuntimeError, match="4 of 16 samples"):
        make_generator(40, all_fail({2}), reward__max_failure_share=0.0, **ONE_SIZE).generate_samples()


def test_a_step_that_a_dead_reward_leaves_empty_names_the_reward(make_generator):
    generator = make_generator(40, all_fail(range(40)), reward__max_failure_share=1.0, **ONE_SIZE)
    message = "dropped: 40 reward missing.: repair the reward, --reward.remote_url reward.py failed first with E0$"
    with pytest.raises(RuntimeError, match=message):
        generator.generate_samples()

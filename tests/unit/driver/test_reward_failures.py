"""Samples without a reward: counted, reported once, and the end of a run that has too many."""

from contextlib import nullcontext

import pytest
from fake_engines import MIXED, ONE_SIZE, WRONG, prompts_of
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

import openrlhf_sagc.driver.evaluation as evaluation
import openrlhf_sagc.driver.rollout as rollout
from openrlhf_sagc.decisions.records import ROLLOUT, Rollout
from openrlhf_sagc.driver.experience import group_sizes_of
from openrlhf_sagc.driver.reward_failures import MOST_REASONS, RewardFailures


def test_a_failed_reward_costs_its_sample_and_the_group_is_trained_without_it(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)

    def respond(prompt, size):
        failure = "ValueError: no parse (reward.py:3)" if prompt == 1 else None
        return [(10, 1.0, 1.0, failure)] + [(10, float(i)) for i in range(size - 1)]

    generator = make_generator(40, respond, filtering=True, **ONE_SIZE)
    samples, _, consumed, _ = generator.generate_samples()
    assert group_sizes_of(samples) == [4, 3, 4, 4] and consumed == 4
    assert [made.sample.reward for made in samples[4:7]] == [0.0, 1.0, 2.0]
    assert {(made.step.num_samples, made.step.lost) for made in samples} == {(16, 1)}
    assert generator.metrics["rollout/reward_failures"] == 1
    assert generator.metrics["rollout/reward_failure_share"] == 1 / (4 * 9)  # groups that the filter lets it ask for
    assert generator.metrics["dynamic_filtering/dropped_reward_missing"] == 0
    assert warnings == [
        "--reward.remote_url reward.py: samples lack a reward after at most 3 attempts, first: "
        "ValueError: no parse (reward.py:3) (rollout/reward_failures, or eval_failed_rewards, counts them)"
    ]


@pytest.mark.parametrize("filtering", [False, True])
def test_a_group_goes_that_has_one_sample_left_and_equal_rewards_are_the_filters_matter(make_generator, filtering):
    """Prompt 0 has one reward, prompt 1 two equal ones, all others have some that differ."""
    rewards = {0: [1.0, None, None, None], 1: [1.0, None, 1.0, None]}

    def respond(prompt, size):
        return [(10, r, 1.0, "E" if r is None else None) for r in rewards.get(prompt, MIXED)]

    generator = make_generator(40, respond, filtering=filtering, reward__max_failure_share=0.5, **ONE_SIZE)
    samples = generator.generate_samples()[0]
    assert [int(made.sample.prompt) for made in samples] == (
        [2] * 4 + [3] * 4 + [4] * 4 + [5] * 4 if filtering else [1] * 2 + [2] * 4 + [3] * 4 + [4] * 4
    )
    dropped = {n: generator.metrics[f"dynamic_filtering/dropped_{n}"] for n in ("reward_missing", "all_right")}
    assert dropped == {"reward_missing": 1, "all_right": filtering}


@pytest.mark.parametrize("share, failures, samples", [(0.1, 2, 16), (0.0, 1, 16), (0.2, 4, 16), (0.02, 2, 16)])
def test_too_many_samples_without_a_reward_end_the_run(make_generator, share, failures, samples):
    respond = lambda prompt, size: [(10, 1.0, 1.0, f"E{prompt}")] + [(10, 1.0)] * (size - 1)  # noqa: E731
    generator = make_generator(40, respond, reward__max_failure_share=share, **ONE_SIZE)
    with pytest.raises(
        RuntimeError, match=rf"{failures} of {samples} samples .* first: E0; --reward.max_failure_share {share:g}"
    ):
        generator.generate_samples()


def test_the_default_allows_two_samples_in_a_hundred(make_generator):
    """128 samples: two may fail in different groups, three may not."""

    def respond(prompt, size):
        return [(10, 1.0, 1.0, "E" if prompt in failing else None)] + [(10, 0.0)] * (size - 1)

    for failing, ends in (({3, 7}, False), ({3, 7, 9}, True)):
        generator = make_generator(90, respond, rollout__batch_size=32, **ONE_SIZE)
        with pytest.raises(RuntimeError, match="3 of 128 samples") if ends else nullcontext():
            assert len(generator.generate_samples()[0]) == 126


@pytest.mark.parametrize("tokens, told", [(40, True), (4, True), (13, False), (11, False)])
def test_a_run_says_once_that_rewards_of_long_or_short_responses_fail(make_generator, monkeypatch, tokens, told):
    """Timeouts hit long responses."""
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)

    def respond(prompt, size):
        return [(12, 1.0)] * (size - 1) + [(tokens, 1.0, 1.0, "E" if prompt % 4 == 0 else None)]

    generator = make_generator(200, respond, reward__max_failure_share=1.0, **ONE_SIZE)
    for _ in range(4):
        generator.generate_samples()
        mean = (12 * 12 + 3 * tokens) / 15
        assert generator.metrics["rollout/failed_length_ratio"] == pytest.approx(tokens / mean)
    said = [line for line in warnings if "tokens on average" in line]
    assert len(said) == told
    assert not told or ("--reward.timeout 9 may be too short" in said[0]) == (tokens == 40)


def test_refused_prompts_have_no_length(make_generator):
    def respond(prompt, size):
        return [(0, 1.0, 1.0, "refused") if prompt == 1 else (10, 1.0)] * size

    generator = make_generator(40, respond, **ONE_SIZE)
    generator.generate_samples()
    assert generator.metrics["rollout/reward_failures"] == 4 and "rollout/failed_length_ratio" not in generator.metrics


def test_failed_rewards_are_a_share_of_all_that_the_step_dispatched(make_generator):
    """Two of its first 32 samples fail, in a step that dispatches more than twice what it trains."""
    scores = lambda prompt: MIXED if prompt % 4 == 0 else WRONG  # noqa: E731
    fails = lambda prompt, i: "E" if prompt in (1, 9) and i == 0 else None  # noqa: E731
    respond = lambda prompt, size: [  # noqa: E731
        (10, score, 1.0, fails(prompt, i)) for i, score in enumerate(scores(prompt))
    ]
    generator = make_generator(40, respond, filtering=True, reward__max_failure_share=0.1, **ONE_SIZE)
    generator.generate_samples()
    assert generator.metrics["rollout/reward_failures"] == 2 > 0.1 * 16


def test_neither_the_line_that_ends_a_run_nor_its_state_has_the_secrets_of_a_reward_url(make_generator):
    respond = lambda prompt, size: [(10, 1.0, 1.0, "E")] * size  # noqa: E731
    generator = make_generator(
        40, respond, reward__remote_url=["http://user:secret@host/get?token=secret"], **ONE_SIZE
    )
    with pytest.raises(RuntimeError) as error:
        generator.generate_samples()
    assert str(error.value).startswith("--reward.remote_url ***: ") and "secret" not in str(error.value)
    assert "secret" not in repr(generator.state_dict())


def all_fail(prompts):
    """respond() whose rewards fail for these prompts."""
    return lambda prompt, size: [(10, 1.0, 1.0, f"E{prompt}" if prompt in prompts else None)] * size


def test_one_prompt_whose_reward_always_fails_does_not_end_the_run(make_generator):
    generator = make_generator(40, all_fail({2}), **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [0, 1, 3, 4]
    assert generator.metrics["rollout/reward_failures"] == 4
    with pytest.raises(RuntimeError, match="8 of 20 samples lack a reward .* first: E2"):
        make_generator(40, all_fail({2, 3}), **ONE_SIZE).generate_samples()
    with pytest.raises(RuntimeError, match="4 of 16 samples"):
        make_generator(40, all_fail({2}), reward__max_failure_share=0.0, **ONE_SIZE).generate_samples()


def test_a_step_that_a_dead_reward_leaves_empty_names_the_reward(make_generator):
    generator = make_generator(40, all_fail(range(40)), reward__max_failure_share=1.0, **ONE_SIZE)
    message = "dropped: 40 reward missing.: repair the reward, --reward.remote_url reward.py failed first with E0$"
    with pytest.raises(RuntimeError, match=message):
        generator.generate_samples()


def test_prompts_with_one_text_are_groups_of_their_own(make_generator):
    """Environments may have one text, and their seed in the label."""
    respond = lambda prompt, size: [(10, 1.0, 1.0, "E")] + [(10, 1.0)] * (size - 1)  # noqa: E731
    generator = make_generator(40, respond, **ONE_SIZE)
    answer = generator.ray.respond
    generator.ray.respond = lambda ref: [{**response, "prompt": "play"} for response in answer(ref)]
    with pytest.raises(RuntimeError, match="2 of 16 samples lack a reward"):
        generator.generate_samples()


@pytest.mark.parametrize("failing, ends", [({0, 1}, True), ({0}, False)])
def test_an_evaluation_counts_its_groups_too(make_generator, monkeypatch, failing, ends):
    """Eight prompts of one text with four responses each; two of them fail, or one with all its responses."""
    generator = make_generator(40, **ONE_SIZE)

    def evaluate(self, **kwargs):
        rollouts = [Rollout(5, 1.0, 0.0, True, False, "E" if group in failing else None) for group in range(8)]
        fields = {
            "prompt": "play",
            "label": "",
            "observation_tokens": [1, 2],
            "action_ranges": [(1, 2)],
            "reward": 1.0,
        }
        fields |= {"rollout_log_probs": None, "extra_logs": {}}
        monkeypatch.setattr("ray.get", lambda ref, timeout: [{**fields, ROLLOUT: ref}] * 4)
        monkeypatch.setattr(evaluation, "_collect_prompt_batch", lambda *_: (["play"] * 8, [""] * 8, [None] * 8, True))
        self._dispatch_prompts_to_vllm = lambda *_, **__: rollouts
        return self._generate_vllm(None, 8, False, **kwargs)[0]

    monkeypatch.setattr(SamplesGenerator, "generate_eval_samples", evaluate)
    if ends:
        with pytest.raises(RuntimeError, match="8 of 32 samples lack a reward"):
            generator.generate_eval_samples(n_samples_per_prompt=4)
    else:
        assert generator.generate_eval_samples(n_samples_per_prompt=4).count(None) == 4


def test_a_refused_prompt_is_not_the_fault_of_a_reward_that_the_run_does_not_have(make_generator):
    respond = lambda prompt, size: [(10, 1.0, 1.0, "the prompt is empty")] * size  # noqa: E731
    with pytest.raises(
        RuntimeError, match="^--data.prompt_dataset: 8 of 20 samples lack a reward .* the prompt is empty;"
    ):
        make_generator(40, respond, reward__remote_url=None, **ONE_SIZE).generate_samples()


def test_every_reason_is_reported_once(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    reasons = {
        1: "the prompt is empty",
        3: "tokens [7, 8]",
        4: "tokens [9]",
        5: "the prompt is empty",
        6: "TypeError: a",
    }
    respond = lambda prompt, size: [(10, 1.0, 1.0, reasons.get(prompt))] * size  # noqa: E731
    generator = make_generator(40, respond, reward__max_failure_share=1.0, **ONE_SIZE)
    for _ in range(3):
        generator.generate_samples()
    said = [line.split(": ", 1)[1] for line in warnings if "remote_url" in line]
    counted = "(rollout/reward_failures, or eval_failed_rewards, counts them)"
    first = f"samples lack a reward after at most 3 attempts, first: the prompt is empty {counted}"
    assert said == [first, "another reason: tokens [7, 8]", "another reason: TypeError: a"]


def test_a_run_with_endless_reasons_is_warned_of_some(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    respond = lambda prompt, size: [(10, 1.0, 1.0, "x" * (prompt + 1) if prompt % 2 else None)] * size  # noqa: E731
    generator = make_generator(200, respond, reward__max_failure_share=1.0, **ONE_SIZE)
    for _ in range(20):
        generator.generate_samples()
    assert sum("remote_url" in line for line in warnings) == MOST_REASONS


def test_a_step_that_lacks_samples_of_the_step_before_names_the_reward(make_generator):
    """Groups that are kept may have lost samples then; nothing has failed in this step."""
    failures = RewardFailures(make_generator(8, lambda prompt, size: [], **ONE_SIZE).settings, print)
    assert failures.first == "--reward.remote_url reward.py failed in the step before"

"""Groups without a reward: counted, reported once, and the end of a run that has too many."""

import pytest
from fake_engines import MIXED, ONE_SIZE, WRONG, prompts_of
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

import openrlhf_sagc.driver.rollout as rollout
from openrlhf_sagc.decisions.records import ROLLOUT, Rollout
from openrlhf_sagc.driver.reward_failures import MOST_REASONS


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
        "--reward.remote_url reward.py: 1 of 4 groups lack a reward after at most 3 attempts, first: "
        "ValueError: no parse (reward.py:3)"
    ]


@pytest.mark.parametrize("share, failures, groups", [(0.1, 2, 5), (0.0, 1, 4), (0.5, 4, 7)])
def test_too_many_groups_without_a_reward_end_the_run(make_generator, share, failures, groups):
    respond = lambda prompt, size: [(10, 1.0, 1.0, f"E{prompt}")] + [(10, 1.0)] * (size - 1)  # noqa: E731
    generator = make_generator(40, respond, reward__max_failure_share=share, **ONE_SIZE)
    with pytest.raises(
        RuntimeError, match=rf"{failures} of {groups} groups .* first: E0; --reward.max_failure_share {share:g}"
    ):
        generator.generate_samples()


def test_failed_rewards_are_a_share_of_all_that_the_step_dispatched(make_generator):
    """A group of every eight fails, in a step that dispatches more than twice what it trains."""
    scores = lambda prompt: MIXED if prompt % 4 == 0 else WRONG  # noqa: E731
    fails = lambda prompt, i: "E" if prompt in (1, 9) and i == 0 else None  # noqa: E731
    respond = lambda prompt, size: [  # noqa: E731
        (10, score, 1.0, fails(prompt, i)) for i, score in enumerate(scores(prompt))
    ]
    generator = make_generator(40, respond, filtering=True, reward__max_failure_share=0.2, **ONE_SIZE)
    generator.generate_samples()
    assert generator.metrics["rollout/reward_failures"] == 2 > 0.2 * 4


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
    with pytest.raises(RuntimeError, match="2 of 5 groups lack a reward .* first: E2"):
        make_generator(40, all_fail({2, 3}), **ONE_SIZE).generate_samples()
    with pytest.raises(RuntimeError, match="1 of 4 groups"):
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
    with pytest.raises(RuntimeError, match="2 of 5 groups lack a reward"):
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
        monkeypatch.setattr(rollout.ray, "get", lambda ref: [{**fields, ROLLOUT: ref}] * 4)
        monkeypatch.setattr(rollout, "_collect_prompt_batch", lambda *_: (["play"] * 8, [""] * 8, [None] * 8, True))
        self._dispatch_prompts_to_vllm = lambda *_, **__: rollouts
        return self._generate_vllm(None, 8, False, **kwargs)[0]

    monkeypatch.setattr(SamplesGenerator, "generate_eval_samples", evaluate)
    if ends:
        with pytest.raises(RuntimeError, match="2 of 8 groups lack a reward"):
            generator.generate_eval_samples(n_samples_per_prompt=4)
    else:
        assert generator.generate_eval_samples(n_samples_per_prompt=4).count(None) == 4


def test_a_refused_prompt_is_not_the_fault_of_a_reward_that_the_run_does_not_have(make_generator):
    respond = lambda prompt, size: [(10, 1.0, 1.0, "the prompt is empty")] * size  # noqa: E731
    with pytest.raises(
        RuntimeError, match="^--data.prompt_dataset: 2 of 5 groups lack a reward .* the prompt is empty;"
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
    first = "1 of 4 groups lack a reward after at most 3 attempts, first: the prompt is empty"
    assert said == [first, "another reason: tokens [7, 8]", "another reason: TypeError: a"]


def test_a_run_with_endless_reasons_is_warned_of_some(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    respond = lambda prompt, size: [(10, 1.0, 1.0, "x" * (prompt + 1) if prompt % 2 else None)] * size  # noqa: E731
    generator = make_generator(200, respond, reward__max_failure_share=1.0, **ONE_SIZE)
    for _ in range(20):
        generator.generate_samples()
    assert sum("remote_url" in line for line in warnings) == MOST_REASONS

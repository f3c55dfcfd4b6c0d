"""With --rollout.drafts: what engines get of earlier responses, and what the log says, on the engines of fake_engines.py."""

from collections import Counter

import numpy as np
import pytest
from fake_engines import ONE_SIZE, PROMPT_TOKENS

DRAFTS = {"rollout__drafts": "siblings", "rollout__batch_size": 4}


def lengths_in(earlier):
    """Tokens of the prompts, and of the responses to each."""
    count = lambda text: len(np.frombuffer(text, np.int32))  # noqa: E731
    return [(count(prompt), [*map(count, texts)]) for prompt, texts in earlier]


def next_step(generator):
    while not generator.generate_samples()[0]:
        pass


def test_a_prompt_that_comes_again_comes_with_its_last_responses(make_generator):
    generator = make_generator(4, lambda prompt, size: [(10 + prompt, 1.0)] * size, engines=2, **ONE_SIZE, **DRAFTS)
    next_step(generator)
    assert generator.ray.earlier == [[], []]
    generator.ray.earlier.clear()
    next_step(generator)
    sent = [pair for earlier in generator.ray.earlier for pair in lengths_in(earlier)]
    assert sorted(sent) == [(PROMPT_TOKENS, [10 + prompt] * 4) for prompt in range(4)]
    assert [len(earlier) for earlier in generator.ray.earlier] == [2, 2]  # each engine has its own prompts'


def test_without_drafts_nothing_is_kept_or_sent(make_generator):
    generator = make_generator(4, **ONE_SIZE, rollout__batch_size=4)
    for _ in range(2):
        next_step(generator)
    assert not any(generator.ray.earlier)
    assert generator.metrics["rollout/tokens_per_iteration"] == 1.0
    assert "rollout/draft_acceptance" not in generator.metrics


def test_nobody_counts_the_iterations_of_other_drafts(make_generator):
    other = {"speculative_config": {"method": "ngram"}}
    generator = make_generator(4, **ONE_SIZE, rollout__batch_size=4, engine_args=other)
    next_step(generator)
    assert "rollout/tokens_per_iteration" not in generator.metrics


@pytest.mark.parametrize("method", [None, "sort"])
@pytest.mark.parametrize("placed", [False, True])
def test_a_group_stays_on_one_engine_unless_it_is_to_be_placed(make_generator, method, placed):
    tail = {"rollout__tail_batching__enable": True, "rollout__tail_batching__method": method} if method else {}
    generator = make_generator(
        8,
        lambda prompt, size: [(95 if prompt == 0 else 10, 1.0)] * size,
        engines=2,
        group_sizes=[4],
        rollout__length_aware_dispatch=placed,
        **{**DRAFTS, **tail, "rollout__batch_size": 8},
    )
    next_step(generator)
    generator.dispatched_to.clear()
    next_step(generator)
    engines = [Counter(map(int, prompts)) for prompts in generator.dispatched_to]
    sizes = {engine[prompt] for engine in engines for prompt in range(8)} - {0}
    assert sizes == ({2} if placed else {4}) or placed and 2 in sizes
    loads = sorted(prompts.total() for prompts in engines)
    assert loads == ([4, 28] if method and not placed else [16, 16])  # the long one alone


def test_what_drafts_gain_is_logged_by_the_step_and_said_once(make_generator, monkeypatch):
    said = []
    monkeypatch.setattr("openrlhf_sagc.driver.rollout.logger.info", said.append)
    generator = make_generator(4, engines=2, **ONE_SIZE, **DRAFTS)
    generator.ray.drafts = {"tokens": 20, "iterations": 10, "drafted": 16, "accepted": 10}
    generator.ray.draft_counts["mib"] = 1.5
    for step in range(1, 23):
        next_step(generator)
        logged = {name.split("/")[1]: value for name, value in generator.metrics.items() if "draft" in name}
        assert generator.metrics["rollout/tokens_per_iteration"] == 2.0
        assert logged["draft_acceptance"] == 10 / 16 and 5.0 < logged["draft_mib"] < 5.1
        assert len([line for line in said if line.startswith("drafts ")]) == (step >= 20)
    assert "saved 50 % of the iterations: a request got 2.00 tokens" in said[-1] and "62 %" in said[-1]


def test_a_step_whose_engines_have_decoded_nothing_logs_nothing_of_them(make_generator):
    generator = make_generator(4, engines=2, **ONE_SIZE, **DRAFTS)
    next_step(generator)
    assert not [name for name in generator.metrics if "draft" in name or "tokens_per_iteration" in name]

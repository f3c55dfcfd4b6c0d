"""Expected lengths from a prompt's history, and the balance of engines."""

import json
import math
from types import SimpleNamespace

import numpy as np
import openrlhf.trainer.ppo_utils.samples_generator as upstream
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from openrlhf_sagc.decisions import length_prediction
from openrlhf_sagc.decisions.length_prediction import LAST_GROUPS, LengthPredictor, balance, key_of, place_whole


def shown(*groups):
    predictor = LengthPredictor()
    for prompt, tokens in groups:
        predictor.observe(prompt, tokens, [False] * len(tokens))
    return predictor


def test_a_prompt_never_seen_is_expected_to_be_average():
    assert LengthPredictor().predict("new") == 1
    assert shown(("a", [100] * 8), ("b", [400] * 8)).predict("new") == pytest.approx(200, rel=0.01)


def test_a_prompts_own_rollouts_count_more_than_the_average():
    """0.5 rollouts' worth of the average, 400, against 8 of its own."""
    predictor = shown(("short", [100] * 8), ("long", [1600] * 8))
    assert predictor.predict("long") == pytest.approx(1600 * (400 / 1600) ** (0.5 / 8.5), rel=0.01)
    assert predictor.predict("short") == pytest.approx(100 * (400 / 100) ** (0.5 / 8.5), rel=0.01)


def test_a_stopped_rollout_counts_as_at_least_as_long_as_expected():
    predictor = shown(*((str(prompt), [200] * 8) for prompt in range(20)))
    predictor.observe("stopped early", [10] * 8, [True] * 8)
    predictor.observe("stopped late", [900] * 8, [True] * 8)
    predictor.observe("finished", [10] * 8, [False] * 8)
    assert predictor.predict("stopped early") == pytest.approx(predictor.predict("new"), rel=0.2)
    assert predictor.predict("stopped late") > 3 * predictor.predict("new")
    assert predictor.predict("finished") < predictor.predict("new") / 3


def test_the_prediction_follows_a_policy_whose_responses_grow():
    predictor = LengthPredictor()
    for factor in (1, 2, 4):
        for _ in range(50):
            predictor.observe("short", [50 * factor] * 8, [False] * 8)
            predictor.observe("long", [200 * factor] * 8, [False] * 8)
    assert predictor.predict("short") == pytest.approx(200, rel=0.35)
    assert predictor.predict("long") == pytest.approx(800, rel=0.35)


def test_history_predicts_better_than_the_average_where_prompts_differ():
    """Lognormal lengths with 70 % of the spread between prompts, as reasoning models show."""
    rng = np.random.default_rng(0)
    means = rng.normal(6, math.sqrt(0.7), 200)
    sample = lambda: np.exp(rng.normal(means[:, None], math.sqrt(0.3), (200, 8)))  # noqa: E731
    predictor = LengthPredictor()
    for prompt, tokens in enumerate(sample()):
        predictor.observe(str(prompt), tokens.tolist(), [False] * 8)
    actual = np.log(sample().mean(axis=1))
    predicted = np.log([predictor.predict(str(prompt)) for prompt in range(200)])
    assert np.corrcoef(actual, predicted)[0, 1] > 0.85


def test_saved_and_loaded_it_predicts_the_same():
    predictor = shown(("a", [100, 120]), ("b", [900, 1000]))
    other = LengthPredictor()
    other.load_state_dict(json.loads(json.dumps(predictor.state_dict())))
    for prompt in ("a", "b", "new"):
        assert other.predict(prompt) == predictor.predict(prompt)
    for each in (predictor, other):
        each.observe("a", [50, 60], [False, False])
    assert other.state_dict() == predictor.state_dict()


@given(st.lists(st.floats(1, 1000), max_size=40), st.integers(1, 8), st.integers(1, 5))
def test_no_engine_has_more_than_graham_allows(expected, engines, rollouts):
    """Longest first from idle engines: every rollout once, and the most within 4/3 of what any assignment must have."""
    assigned = balance([0.0] * engines, expected, rollouts)
    assert sorted(prompt for prompt, _ in assigned) == list(range(len(expected)))
    assert all(len(chosen) == rollouts for _, chosen in assigned)
    order = [expected[prompt] for prompt, chosen in assigned for _ in chosen]
    assert order == sorted(order, reverse=True)
    loads = [sum(expected[prompt] * chosen.count(e) for prompt, chosen in assigned) for e in range(engines)]
    pairs = sum(order[engines - 1 : engines + 1]) if len(order) > engines else 0.0
    bound = max([sum(order) / engines, pairs, *expected], default=0.0)
    assert max(loads) <= bound * (4 / 3 + 1 / 3) + 1e-6


def test_engines_that_are_busy_get_less():
    assert balance([100.0, 0.0], [60.0, 30.0, 50.0], 1) == [(0, (1,)), (2, (1,)), (1, (0,))]


def test_rollouts_of_a_prompt_are_shared_by_the_engines():
    assert balance([0.0, 0.0, 0.0], [10.0, 20.0], 4) == [(1, (0, 1, 2, 0)), (0, (1, 2, 1, 2))]


def test_the_prompts_seen_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(length_prediction, "MOST_PROMPTS", 3)
    predictor = shown(("a", [100] * 8), ("b", [200] * 8), ("c", [400] * 8), ("a", [100] * 8), ("d", [800] * 8))
    assert list(predictor.state_dict()["prompts"]) == [key_of(prompt) for prompt in "cad"]
    assert predictor.predict("b") == predictor.predict("never seen")
    monkeypatch.setattr(length_prediction, "MOST_PROMPTS", 2)
    resumed = LengthPredictor()
    resumed.load_state_dict(json.loads(json.dumps(predictor.state_dict())))
    assert list(resumed.state_dict()["prompts"]) == [key_of(prompt) for prompt in "ad"]


@given(st.integers(1, 12), st.sampled_from([4, 8, 16]), st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_whole_groups_are_placed_as_openrlhf_places_them(count, size, loads):
    actors = [
        SimpleNamespace(
            get_num_unfinished_requests=SimpleNamespace(remote=lambda load=load: load),
            generate_responses=SimpleNamespace(remote=lambda engine=engine, **_: engine),
            set_tokenizer=SimpleNamespace(remote=lambda tokenizer: None),
        )
        for engine, load in enumerate(loads)
    ]
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(is_correction_level="off")),
        rollout=SimpleNamespace(n_samples_per_prompt=None),
    )
    generator = upstream.SamplesGenerator(SimpleNamespace(args=args), None, None, None, actors)
    prompts = [""] * count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream.ray, "get", lambda results: results)
        patch.setattr(upstream, "SamplingParams", lambda **_: None)
        expected = generator._dispatch_prompts_to_vllm(prompts, prompts, n_samples_per_prompt=size)
    assert place_whole(loads, [size] * count) == [(engine,) * size for engine in expected]


def explained_of(history, now, spread=1.0):
    """What is explained of 400 prompts, whose log lengths are these functions of their number."""
    predictor, rng = LengthPredictor(), np.random.default_rng(0)
    logs = rng.normal(6, spread, 400)
    for lengths in (history, now):
        for prompt, log in enumerate(logs):
            tokens = np.exp(lengths(log) + rng.normal(0, 0.4, 8))
            predictor.observe(str(prompt), tokens.tolist(), [False] * 8)
    return predictor


def same(log):
    return log


def test_what_history_explains_of_the_spread_is_measured():
    assert explained_of(same, same).explained > 0.8
    assert explained_of(same, lambda log: log + 0.7).explained > 0.7  # all have grown
    assert explained_of(same, lambda log: 12 - log).explained < -1  # it misleads
    assert abs(explained_of(same, same, spread=0.0).explained) < 1  # all are alike
    assert LengthPredictor().explained == 0


def test_expected_lengths_are_ranked_beside_those_that_come():
    """As SciPy ranks them, over the last groups with a history."""
    found = explained_of(same, same)
    expected, seen = np.array(found._pairs).T
    assert len(found._pairs) == LAST_GROUPS and found.rank_correlation == pytest.approx(spearmanr(expected, seen)[0])
    assert found.rank_correlation > 0.9 and explained_of(same, lambda log: 12 - log).rank_correlation < -0.8
    found._pairs.extend([6.0, 6.0 + place // 8] for place in range(64))  # many were cut off
    expected, seen = np.array(found._pairs).T
    assert found.rank_correlation == pytest.approx(spearmanr(expected, seen)[0])
    assert LengthPredictor().rank_correlation == 0 == shown(*[("0", [100, 100])] * 9).rank_correlation  # all are alike
    again = LengthPredictor()
    again.load_state_dict(json.loads(json.dumps(found.state_dict())))
    assert again.rank_correlation == found.rank_correlation


def test_prompts_without_a_history_are_not_explained_and_slow_ones_do_not_count():
    predictor, rng = LengthPredictor(), np.random.default_rng(0)
    for prompt, log in enumerate(rng.normal(6, 1, 800)):
        predictor.observe(str(prompt), np.exp(log + rng.normal(0, 0.4, 8)).tolist(), [False] * 8)
    before = predictor.explained
    assert abs(before) < 0.1
    predictor.observe("0", [1e5] * 8, [False] * 8, is_fair=False)
    predictor.observe("1", [1e5] * 8, [True] * 8)
    assert predictor.explained == before


def test_what_a_later_episode_foresees_is_known_before_it_begins_and_measured_in_it():
    """It took most of a second episode to be seen where errors of prompts without a history counted."""
    predictor, rng = LengthPredictor(), np.random.default_rng(0)
    logs = rng.normal(6, 1, 320)
    rolled_out = lambda log: np.exp(log + rng.normal(0, 0.4, 8)).tolist()  # noqa: E731
    assert predictor.explained_again == 0
    for prompt, log in enumerate(logs):
        predictor.observe(str(prompt), rolled_out(log), [False] * 8)
    predictor.begin_episode()
    assert predictor.explained == 0 and predictor.explained_again > 0.9
    for prompt, log in enumerate(logs[:64]):
        predictor.observe(str(prompt), rolled_out(12 - log), [False] * 8)
    assert predictor.explained_again < -1  # it misleads
    again = LengthPredictor()
    again.load_state_dict(predictor.state_dict())
    assert again.explained_again == predictor.explained_again and again.explained == predictor.explained


def test_an_episode_of_other_prompts_foresees_nothing_once_they_are_seen():
    """A resume with other data goes on in a later episode, with the histories of the ones before."""
    predictor, rng = LengthPredictor(), np.random.default_rng(0)
    logs = rng.normal(6, 1, 320)
    rolled_out = lambda log: np.exp(log + rng.normal(0, 0.4, 8)).tolist()  # noqa: E731
    for _ in range(2):
        predictor.begin_episode()
        for prompt, log in enumerate(logs):
            predictor.observe(str(prompt), rolled_out(log), [False] * 8)
    predictor.begin_episode()
    assert predictor.explained_again > 0.8
    for prompt, log in enumerate(logs[:16]):
        predictor.observe(f"other {prompt}", rolled_out(log), [False] * 8)
    assert predictor.explained_again == 0
    predictor.begin_episode()  # in which these have a history
    assert predictor.explained_again > 0.8


def test_a_state_of_before_goes_on_with_its_lengths():
    predictor = explained_of(same, same)
    state = predictor.state_dict()
    again = LengthPredictor()
    again.load_state_dict(state | {"judged": state["judged"][:4]})
    assert again.predict("3") == predictor.predict("3") and again.explained == 0


def test_the_drift_of_all_lengths_is_no_difference_between_prompts():
    """What all others show moves the expectation of a prompt that was seen only before."""
    predictor = LengthPredictor()
    for prompt in range(400):
        predictor.observe(str(prompt), [100.0] * 8, [False] * 8)
    for prompt in range(399):
        predictor.observe(str(prompt), [200.0] * 8, [False] * 8)
    assert predictor.predict("399") > 160
    assert 180 < predictor.predict("0") < 300  # was seen before the others showed that it was a drift


def test_an_earlier_runs_rollouts_are_remembered():
    predictor = LengthPredictor()
    predictor.remember({key_of("short"): [math.log(100)] * 8, key_of("long"): [math.log(1600)] * 8})
    assert predictor.knows("short") and not predictor.knows("other")
    assert predictor.predict("short") == pytest.approx(100, rel=0.15) and predictor.predict("long") > 1300
    assert predictor.predict("other") == pytest.approx(400)
    predictor.observe("long", [1600.0] * 8, [False] * 8)
    assert predictor.explained > 0.9


def test_a_long_history_leaves_the_average_free_to_move():
    predictor = LengthPredictor()
    predictor.remember({key_of(str(prompt)): [math.log(100)] * 32 for prompt in range(4000)})
    for prompt in range(3000):
        predictor.observe(f"new {prompt}", [800] * 8, [False] * 8)
    assert predictor.predict("other") > 700


def test_a_history_under_other_keys_is_dropped():
    predictor = LengthPredictor()
    predictor.load_state_dict({"average": [5.0, 1.0], "prompts": {"0" * 16: [5.0, 1.0], key_of("a"): [5.0, 1.0]}})
    assert list(predictor.state_dict()["prompts"]) == [key_of("a")]

"""Filters that others write: in the driver's loop on fake engines, their refusals, their state."""

import json
from functools import partial

import pytest
from fake_engines import ONE_SIZE, prompts_of
from flags import arguments_with
from policy_files import metrics_of, respond, through_a_checkpoint, written

import openrlhf_sagc.driver.rollout as rollout
from openrlhf_sagc.own_policies import PolicyError
from openrlhf_sagc.policies import build_sampler

FILTERS = '''
class Short:
    def __init__(self, tolerance, range):
        self.settings, self.seen = (tolerance, range), []

    def admit(self, group):
        self.seen.append(group)
        return "too_short" if max(group.lengths) < 11 else None


class Twice:
    """Keeps every second group."""

    def __init__(self):
        self.count = 0

    def admit(self, group):
        self.count += 1
        return None if self.count % 2 else "odd"

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Wrong:
    def admit(self, group):
        return VALUE
'''


@pytest.fixture
def file(tmp_path):
    """file(source) -> the path of a module that has it."""
    return partial(written, tmp_path)


def filtered(make_generator, word, respond=respond, filtering=True, **flags):
    return make_generator(400, respond, filtering, algo__dynamic_filtering_policy=word, **ONE_SIZE, **flags)


def test_a_filter_judges_in_the_place_of_the_scores(make_generator, file):
    """All scores are equal, so dynamic sampling would keep nothing; a member without a reward is left out."""

    def respond(prompt, size):
        return [
            (10 if prompt % 2 else 20, 1.0, None, "no reward" if prompt == 6 and not place else None)
            for place in range(size)
        ]

    generator = filtered(make_generator, f"{file(FILTERS)}:Short", respond, reward__max_failure_share=0.5)
    samples, pass_rate, *_ = generator.generate_samples()
    assert prompts_of(samples) == [0, 2, 4, 6] and pass_rate < 100
    assert generator.metrics["dynamic_filtering/dropped_too_short"] >= 3
    assert generator.metrics["dynamic_filtering/dropped_all_right"] == 0
    filter = generator.planner.sampler.filter._own
    assert filter.settings == (1e-6, (0, 1))
    group = next(group for group in filter.seen if group.prompt == "6")
    assert (group.label, group.scores, group.lengths, group.truncated) == ("", [1.0] * 3, [20] * 3, [False] * 3)
    assert generator.planner.sampler.acceptance_rate(4) < 1


def test_groups_without_rewards_are_dropped_before_a_filter_sees_them(make_generator, file):
    failed = lambda prompt, size: [(20, 1.0, None, "no reward" if prompt == 0 else None)] * size  # noqa: E731
    generator = filtered(make_generator, f"{file(FILTERS)}:Short", failed, reward__max_failure_share=1.0)
    generator.generate_samples()
    assert generator.metrics["dynamic_filtering/dropped_reward_missing"] == 1
    assert "0" not in {group.prompt for group in generator.planner.sampler.filter._own.seen}


@pytest.mark.parametrize("name", ["Short", "Twice"])
def test_the_state_of_a_filter_is_saved_if_it_has_one(make_generator, file, monkeypatch, name):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    word = f"{file(FILTERS)}:{name}"
    generator = filtered(make_generator, word)
    metrics_of(generator, 3)
    saved = through_a_checkpoint(generator.state_dict())
    resumed = filtered(make_generator, word)
    resumed.load_state_dict(saved)
    kept = {"state": {"count": generator.planner.sampler.filter._own.count}} if name == "Twice" else {}
    assert saved["samples_generator"]["sampler"]["filter"] == {"policy": f"sizes.py:{name}", **kept} and not warnings
    if name == "Twice":
        assert resumed.planner.sampler.filter._own.count == kept["state"]["count"] > 0
    other = filtered(make_generator, None)
    other.load_state_dict(saved)
    (line,) = warnings
    assert f"was saved with --algo.dynamic_filtering_policy sizes.py:{name}, and this run has none" in line


@pytest.mark.parametrize("value", ["True", "False", "0", "''", "['a']", r"'two\nlines'", f"'{'a' * 61}'"])
def test_a_filter_that_gives_no_reason_ends_the_run_in_one_line(make_generator, file, value):
    word = f"{file(FILTERS.replace('VALUE', value))}:Wrong"
    with pytest.raises(PolicyError) as ended:
        filtered(make_generator, word).generate_samples()
    assert str(ended.value).startswith(f"policy {word} gives {value} in admit: use None to keep a group, or a text")
    assert "\n" not in str(ended.value)


def test_a_filter_that_keeps_a_state_can_load_it(file):
    text = "class Half:\n    def admit(self, group): ...\n    def state_dict(self): return {}\n"
    flags = {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (0, 1)}
    with pytest.raises(PolicyError, match=r"Half has no method load_state_dict\(state\): add it"):
        build_sampler(arguments_with(flags | {"algo.dynamic_filtering_policy": f"{file(text)}:Half"}))


def test_without_policies_a_checkpoint_has_no_more_than_before(make_generator):
    generator = make_generator(40, respond, True)
    generator.generate_samples()
    state = json.loads(json.dumps(generator.state_dict(), default=lambda value: value.tolist()))["samples_generator"]
    assert not {"policy", "state"} & state["controller"].keys() and "filter" not in state["sampler"]

"""The start-up line; what else it says is in tests/unit/flags/test_arguments.py, for whole commands."""

from lib.policies import parse_policy
from lib.simulation.flags import default_arguments, training_arguments

from openrlhf_sagc.config.start_line import _tail_batching


def said(word, **settings):
    usual = {"batch_size": 8, "n_samples_per_prompt": 8, "seed": 0, "dynamic_sampling": False}
    return _tail_batching(training_arguments(parse_policy(word), default_arguments(**usual | settings)))


def test_each_method_is_told_by_what_it_does():
    assert said("fixed:8+tail:stop").startswith("short rounds dispatch 1.25 times the prompts")
    assert said("fixed:8+tail:sort") == "each step has prompts whose earlier responses were alike in length"
    assert said("fixed:8+tail:sort", prompt_ratio=1.02).endswith(", and 1.02 times as many as it needs")
    assert said("fixed:8+tail").endswith("the log says when, and what comes before")

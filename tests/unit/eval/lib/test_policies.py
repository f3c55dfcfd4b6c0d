"""The words by which eval's commands name policies."""

import re

import pytest
from lib.policies import KINDS, Policy, parse_policy


@pytest.mark.parametrize(
    "word, policy",
    [
        ("sagc", Policy("sagc", "sagc", None, None, None, False, None)),
        ("fixed:16@prompts", Policy("fixed:16", "fixed", 16, None, None, False, "prompts")),
        ("unpatched:8@samples", Policy("unpatched:8", "unpatched", 8, None, None, False, "samples")),
        ("sagc+lengths+tail", Policy("sagc+lengths+tail", "sagc", None, "auto", None, True, None)),
        ("fixed:8+tail:1.25@prompts", Policy("fixed:8+tail:1.25", "fixed", 8, "stop", 1.25, False, "prompts")),
        ("fixed:8+tail:sort", Policy("fixed:8+tail:sort", "fixed", 8, "sort", None, False, None)),
        (
            "fixed:8+stream+forward",
            Policy("fixed:8+stream+forward", "fixed", 8, None, None, False, None, frozenset({"stream", "forward"})),
        ),
        (
            "unpatched:8+filter",
            Policy("unpatched:8+filter", "unpatched", 8, None, None, False, None, frozenset({"filter"})),
        ),
        (
            "my/sizes.py:Mine+tail:sort@prompts",
            Policy("sizes.py:Mine+tail:sort", "own", None, "sort", None, False, "prompts", own="my/sizes.py:Mine"),
        ),
    ],
)
def test_a_word_is_read(word, policy):
    assert parse_policy(word, (*KINDS, "own")) == policy
    assert policy.is_fixed_size == (policy.size is not None and "+" not in word)


@pytest.mark.parametrize(
    "word",
    [
        "fixed",
        "fixed:",
        "fixed:x",
        "sagc:8",
        "sagc@tokens",
        "sagc+tail+tail:2",
        "sagc+tail:",
        "sagc+tail:frames",
        "unpatched:8+tail",
        "unpatched:8+forward",
        "unpatched:8+filter+tail",
        "fixed:8+stream+stream",
        "sizes.py:Mine",
        "",
        "+tail",
    ],
)
def test_a_word_that_names_no_policy_is_refused(word):
    with pytest.raises(
        ValueError, match=rf"^--policies {re.escape(word)}: use unpatched:N or fixed:N or sagc; behind"
    ):
        parse_policy(word)


def test_a_command_may_know_fewer_kinds():
    with pytest.raises(ValueError, match="^--policies unpatched:8: use fixed:N or sagc; behind"):
        parse_policy("unpatched:8", ("fixed", "sagc"))


@pytest.mark.parametrize("name", ["forward", "shuffled", "stream"])
def test_a_command_that_simulates_steps_knows_no_additions_for_them(name):
    with pytest.raises(
        ValueError, match=r"fixed:N or sagc \+tail, \+tail:sort, \+tail:stop, \+tail:RESPONSE_RATIO or \+lengths; and"
    ):
        parse_policy(f"sagc+{name}", ("fixed", "sagc"))

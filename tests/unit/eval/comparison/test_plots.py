"""The plots of a comparison."""

import comparison.logs
import comparison.plots
import comparison.report
import comparison.statistics
import comparison.training


def test_every_policy_has_a_colour():
    policies = ["unpatched:8", "fixed:8+tail", "fixed:8+tail:1", "sagc", "sagc+tail:1", "sagc+lengths", "sagc@prompts"]
    assert list(comparison.plots.colors_of(policies)) == policies

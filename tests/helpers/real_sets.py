"""Problem sets with their answers, where they are at hand."""

import pytest
from cpu_stack import ROOT

DATA = ROOT.parent / "shared" / "data"


def real_sets(test):
    """The test runs on each set, as (name, label_key, solution_key or None)."""
    sets = [
        ("gsm8k_test", "answer", "answer"),
        ("math500_test", "answer", "solution"),
        ("aime24", "answer", None),
        ("aime25", "answer", None),
    ]
    test = pytest.mark.parametrize(("name", "label_key", "solution_key"), sets)(test)
    return pytest.mark.skipif(not DATA.is_dir(), reason="needs the problem sets in ../shared/data")(test)

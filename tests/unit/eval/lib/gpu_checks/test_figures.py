"""The 7B script's figures are those of the memory function."""

import pytest
from lib.gpu_checks.figures import of_script, predicted


def test_the_script_is_predicted_by_its_sizes():
    config, sizes = of_script()
    parts = predicted(config, sizes, 80)
    assert parts["training"] < 80 and parts["generation"] == pytest.approx(69, abs=1)
    more = predicted(config, sizes._replace(tokens=2 * sizes.tokens), 80)
    assert more["training"] > parts["training"] + 30 and more["generation"] == parts["generation"]

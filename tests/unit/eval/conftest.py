"""For the tests of commands that read a trace."""

import numpy as np
import pytest


@pytest.fixture
def trace(tmp_path):
    generator = np.random.default_rng(0)
    tokens = generator.lognormal(5, 0.8, (30, 12)).astype(int)
    correct = generator.random((30, 12)) < 0.5
    lines = [f"p{i},{j},{tokens[i, j]},{correct[i, j]:d}" for i in range(30) for j in range(12)]
    path = tmp_path / "trace.csv"
    path.write_text("prompt_id,sample_id,tokens,correct\n" + "\n".join(lines))
    return path

"""The table of what three arms log."""

import pandas as pd
import pytest
import token_learning as learning
from common.synthetic_reward import checksum


def test_steps_that_all_runs_have_are_compared_and_paired(monkeypatch, tmp_path):
    def read(folder):
        arm, seed = folder.parts[-3], int(folder.parts[-5].removeprefix("seed-"))
        steps = 4 if arm == "weighed" else 3
        values = {tag: [seed + 2.0 * (arm == "weighed")] * 3 + [100.0] * (steps - 3) for tag in learning.LOGGED}
        if arm == "weighed":
            for tenth in learning.TENTHS:
                values |= {f"{tenth}_update": [0.0, 0.0, 0.0, 0.3], f"{tenth}_tokens": [1.0, 1.0, 1.0, 0.2]}
        return pd.DataFrame(values)

    monkeypatch.setattr(learning, "read_run", read)
    table = pd.DataFrame(learning.rows(tmp_path, ["plain", "weighed"], [0, 1, 2])).set_index(["quantity", "arm"])
    assert table.loc[("clip share", "plain"), "mean"] == 1 and table.loc[("clip share", "weighed"), "mean"] == 3
    assert table.loc[("clip share", "weighed"), "difference"] == 2
    assert table.loc[("clip share", "weighed"), "half of its interval"] == 0
    assert table.loc[("weight of the longest tenth", "weighed"), "mean"] == pytest.approx(1.5)
    assert ("weight of the longest tenth", "plain") not in table.index


def test_chance_moves_the_weights_of_prompts_in_small_steps(monkeypatch, tmp_path):
    """Sixteen prompts a step, one in ten four times as long: a step with more of these has more tokens."""
    held = tmp_path / "task-0/data/heldout.jsonl"
    held.parent.mkdir(parents=True)
    held.write_text('{"prompt": "held out"}\n')
    run = tmp_path / "seed-0/grpo/plain"
    run.mkdir(parents=True)
    lines = [f"{prompt} 1.0 {40 if prompt % 10 == 9 else 10} 0.0" for prompt in range(1600) for _ in range(8)]
    lines += [f"{checksum('held out')} 1.0 999 0.0"] * 8 + ["5000 1.0 999 0.0"] * 7  # not whole
    (run / "rewards.log").write_text("\n".join(lines))
    monkeypatch.setattr(learning, "DRAWS", 20)
    longest, shortest = learning.drawn_rows(tmp_path, ["plain"], [0])
    assert 0.8 < longest["mean"] < 1 < shortest["mean"] < 1.1
    assert 0.001 < longest["sd"] < 0.05
    alike = [learning.Trained(80, 8)] * 1600
    assert learning.drawn_weights(alike) == pytest.approx([1, 1])

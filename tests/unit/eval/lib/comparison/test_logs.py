"""Steps and evaluations of a run, from its logs."""

import lib.comparison.logs
import numpy as np
import pytest
from comparison_runs import HELDOUT, scalars, write_run
from lib.synthetic_reward import checksum


@pytest.fixture
def recorded(tmp_path):
    """Two steps and an evaluation after each; in the second step a group was stopped after its first sample."""
    samples = [("a", 1.0, tokens, 102.0 + tokens / 10) for tokens in (10, 10, 10, 25)]  # generated up to 105
    samples += [("b", 0.0, 20, 104.0)] * 4
    samples += [(prompt, right, 5 + 2 * right, 110.0) for prompt in HELDOUT for right in (1.0, 0.0)]
    samples += [("c", 1.0, 12, 120.5)] * 2 + [("d", 0.0, 30, 121.0), ("d", 0.0, 10, 120.0)] + [("e", 1.0, 9, 120.0)]
    samples += [("held 2", 1.0, 5, 130.0)] * 2 + [("held 1", 0.0, 5, 131.0)] * 2
    logs = [
        (108.5, scalars(4.0, 8.0)),
        (125.0, scalars(2.0, 4.0, **{"sagc/virtual_queue": 0.7, "tail_batching/wasted_tokens": 9.0})),
    ]
    return tmp_path, write_run(tmp_path, samples, logs, {1: 110.5, 2: 131.5})


def test_steps_are_read_from_the_logs(recorded):
    folder, evaluated = recorded
    steps = lib.comparison.logs.read_steps(folder, evaluated, straggler_ratio=2.5).set_index("step")
    assert steps["seconds"].tolist() == [0.0, 5.5]
    assert steps["group_size"].tolist() == [4, 2] and steps["groups"].tolist() == [2, 2]
    assert steps["rollouts"].tolist() == [8, 5]  # that of the stopped group too
    assert steps["straggler_rate"].tolist() == [0.5, 0.0]  # max / median 2.5 and 1; 1 and 1.5
    waits = [2.0, 2.0, 2.0, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert steps["idle_tail"][1] == pytest.approx(np.mean(waits), abs=1e-3)
    assert steps["reward"].tolist() == pytest.approx([0.5, 3 / 5])
    assert steps["length_max"].tolist() == [25, 30] and steps["trained"].tolist() == [8, 4]
    assert steps["trained_length"].tolist() == [14, 14]
    assert steps["wasted_tokens"][2] == 9.0 and not steps["sorted_round"].any()
    assert np.isnan(steps["virtual_queue"][1]) and steps["virtual_queue"][2] == pytest.approx(0.7)


def test_control_says_itself_what_the_groups_were(tmp_path):
    control = {"sagc/straggler_rate": 0.125, "sagc/group_size": 8.0}
    evaluated = write_run(tmp_path, [("a", 1.0, 10, 101.0)] * 4, [(108.5, scalars(4.0, 4.0, **control))])
    steps = lib.comparison.logs.read_steps(tmp_path, evaluated, straggler_ratio=2.5)
    assert steps["straggler_rate"].tolist() == [0.125] and steps["group_size"].tolist() == [8]


def test_evaluations_are_read_from_the_logs(recorded):
    folder, evaluated = recorded
    steps = lib.comparison.logs.read_steps(folder, evaluated, straggler_ratio=2.5)
    made = lib.comparison.logs.read_evaluations(folder, evaluated, steps)
    assert made["right"].tolist() == ["1 1", "0 2"] and made["samples"].tolist() == [2, 2]
    assert made["step"].tolist() == [1, 2] and made["seconds"].tolist() == [0.0, 5.5]
    assert made["tokens"].tolist() == [6.0, 5.0]


def test_an_evaluation_that_was_cut_is_left_out(recorded):
    folder, evaluated = recorded
    with (folder / "rewards.log").open("a") as log:
        log.write(f"{checksum('held 1')} 1.0 5 140.0\n")
    steps = lib.comparison.logs.read_steps(folder, evaluated, straggler_ratio=2.5)
    assert lib.comparison.logs.read_evaluations(folder, evaluated, steps)["step"].tolist() == [1, 2]


# Arms differ in when a step is logged: with this package behind its evaluation, in OpenRLHF as released before it.
@pytest.mark.parametrize("patched", [True, False], ids=["patched", "unpatched"])
def test_both_arms_have_their_evaluations_at_the_same_steps(patched, tmp_path):
    samples, logs, evaluations, now = [], [], {}, 100.0
    for step in range(1, 7):
        samples += [("a", 1.0, 10, now + 2.0), ("b", 0.0, 10, now + 4.0)] * 2  # of 4 s of generation
        now += 7.5
        at = now
        if step % 3 == 0:
            right = float(step > 3)
            samples += [(prompt, right, 5, now + 20.0) for prompt in HELDOUT]
            now += 30.0
            evaluations[step] = now
        logs.append((now + 0.01 if patched else at, scalars(4.0, 4.0)))
        now += 0.02
    evaluated = write_run(tmp_path, samples, logs, evaluations)
    steps = lib.comparison.logs.read_steps(tmp_path, evaluated, straggler_ratio=2.5)
    made = lib.comparison.logs.read_evaluations(tmp_path, evaluated, steps)
    assert made["step"].tolist() == [3, 6] and made["right"].tolist() == ["0 0", "1 1"]
    assert made["seconds"].tolist() == [2 * 7.5, 5 * 7.5]
    assert steps["idle_tail"].tolist() == pytest.approx([1.0] * 6, abs=0.02)

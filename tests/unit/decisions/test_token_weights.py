"""What a step counts as, and what its prompts have in the update."""

import json
import math

import numpy as np
import pytest

from openrlhf_sagc.decisions.token_weights import MOST_ROUNDS, WINDOW, PlainSteps, TokenWeights, Trained, step_weight

SHORT, LONG = [Trained(20, 2)] * 4, [Trained(200, 2)] * 4  # 10 and 100 tokens a sample
FRAME = [(SHORT, False)] * 4 + [(LONG, True)]  # of 28 tokens a sample


def test_a_step_counts_as_its_mean_length_over_that_of_plain_steps():
    plain = PlainSteps(15.0, math.inf)
    assert step_weight(300, 10, plain) == 2.0
    assert step_weight(300, 10, None) == step_weight(0, 10, plain) == step_weight(300, 10, PlainSteps(0.0, 4)) == 1.0


def test_long_groups_weigh_as_in_plain_steps_whose_divisor_has_them():
    """In plain steps of 32 groups, one in eight with 40 tokens and the others with 10, a token of a long group weighs less."""
    chances = [math.comb(31, k) * (1 / 8) ** k * (7 / 8) ** (31 - k) for k in range(32)]  # of k other long groups
    mean = 10 + 30 / 8
    long, short = (sum(chance / (own + 10 * 31 + 30 * k) for k, chance in enumerate(chances)) for own in (40, 10))
    weights = [step_weight(tokens, 1, PlainSteps(mean, 32)) / tokens for tokens in (40, 10)]
    assert weights[0] / weights[1] == pytest.approx(long / short, rel=0.01)
    assert long / short < 0.95


def test_plain_steps_count_as_one():
    weights = TokenWeights(by_frame=False)
    assert [weights.weigh(groups, long) for groups, long in FRAME] == [None] * 5
    assert weights.metrics()["step_weight"] == 1.0


def test_the_mean_is_over_the_frames_before_and_in_the_first_frame_over_all_so_far():
    weights = TokenWeights(by_frame=True)
    assert [weights.weigh(*step) for step in FRAME] == [(10, 4)] * 4 + [(28, 4)]
    assert [weights.weigh(*step) for step in FRAME] == [(28, 4)] * 5
    for _ in range(2):  # a second long round is of the same frame
        assert weights.weigh(LONG, True).length == 28
    assert 28 < weights.weigh(SHORT, False).length < 100


def test_within_a_frame_every_token_weighs_about_the_same():
    weights, frame = TokenWeights(by_frame=True), [(groups * 100, long) for groups, long in FRAME]
    for _ in range(2):
        shares = []
        for groups, long in frame:
            weights.weigh(groups, long)
            shares.append(weights.metrics()["step_weight"] / sum(group.tokens for group in groups))
    assert shares == pytest.approx([shares[0]] * 5, rel=0.01)


def test_a_drift_of_lengths_is_followed():
    weights, length = TokenWeights(by_frame=True), 100.0
    for frame in range(40):
        for scale, long in [(0.5, False)] * 4 + [(3.0, True)]:
            tokens = int(length * scale)
            mean = weights.weigh([Trained(tokens, 1)], long).length
        length *= 1.05
    assert length / 1.05 * 0.85 < mean < length / 1.05


def test_sudden_other_lengths_make_earlier_frames_void():
    weights = TokenWeights(by_frame=True)
    for scale in (100, 1):
        for _ in range(3):
            for groups, long in FRAME:
                weights.weigh([Trained(group.tokens * scale, group.samples) for group in groups], long)
    assert weights.weigh(SHORT, False).length == 28


def test_a_frame_ends_where_no_prompts_wait_for_a_long_round():
    weights = TokenWeights(by_frame=True)
    means = [weights.weigh([Trained(100 + step, 1)], False).length for step in range(3 * MOST_ROUNDS)]
    assert means[0] < means[MOST_ROUNDS] < means[2 * MOST_ROUNDS]


def test_the_state_of_a_resumed_run_is_that_of_one_that_went_on():
    runs = [TokenWeights(by_frame=True) for _ in range(2)]
    for groups, long in FRAME + FRAME[:2]:
        runs[0].weigh(groups, long)
    runs[1].load_state_dict(json.loads(json.dumps(runs[0].state_dict())))
    rest = FRAME[2:] + FRAME
    assert [runs[1].weigh(*step) for step in rest] == [runs[0].weigh(*step) for step in rest]


def test_a_run_without_a_state_begins_with_a_first_frame():
    weights = TokenWeights(by_frame=True)
    weights.weigh(LONG, True)
    weights.load_state_dict({})
    assert weights.weigh(SHORT, False).length == 10


@pytest.mark.parametrize("by_frame, longest", [(False, 0.2), (True, 0.7)])
def test_shares_of_the_tenths(by_frame, longest):
    """Of five rounds that weigh the same, the one with 100 of 140 tokens has a fifth of the update."""
    weights = TokenWeights(by_frame=by_frame)
    for frame in range(WINDOW // 5 + 1):
        for tokens, long in [(10, False)] * 4 + [(100, True)]:
            weights.weigh([Trained(tokens, 1)] * 100, long)
    tokens_10, update_10 = weights.tenths()
    assert tokens_10.sum() == pytest.approx(1) and update_10.sum() == pytest.approx(1)
    assert tokens_10[-2:].sum() == pytest.approx(100 / 140)
    assert update_10[-2:].sum() == pytest.approx(longest, rel=0.03)
    metrics = weights.metrics()
    assert metrics["longest_tenth_tokens"] == tokens_10[-1] and metrics["longest_tenth_update"] == update_10[-1]
    assert metrics["shortest_tenth_tokens"] == tokens_10[0] and metrics["shortest_tenth_update"] == update_10[0]


def test_groups_of_other_sizes_count_by_their_samples():
    """Group control: a long round of half as many samples counts by the length of these, not by its tokens."""
    weights = TokenWeights(by_frame=True)
    for groups, long in [*FRAME, (SHORT, False), ([Trained(400, 4)] * 50, True)]:
        weights.weigh(groups, long)
    assert weights.metrics()["step_weight"] == pytest.approx(100 / 28 / (1 + 72 / 28 / 50))


def test_responses_without_tokens_and_fewer_than_ten_prompts():
    weights = TokenWeights(by_frame=True)
    weights.weigh([Trained(0, 2)], False)
    metrics = weights.metrics()
    assert metrics["step_weight"] == 1.0 and not any(np.isnan(list(metrics.values())))

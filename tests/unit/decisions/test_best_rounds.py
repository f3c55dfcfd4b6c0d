"""Which rounds are chosen by what is forecast and measured."""

import json
from types import SimpleNamespace

import pytest

from openrlhf_sagc.decisions.best_rounds import FADE, SLOTS, BestRounds
from openrlhf_sagc.decisions.records import Outlook, Round
from openrlhf_sagc.decisions.round_seconds import RATIO, Seconds

SORTS, ROUNDS, PLAIN = Seconds(100, 60, 80), Seconds(100, 90, 60), Seconds(100, 100, 100)


class Forecasts:
    """Forecasts that a test sets."""

    def __init__(self, seconds, is_guess=False, queues=False):
        self.seconds, self.is_guess, self.queues = seconds, is_guess, queues

    def forecast(self, *arguments):
        return self.seconds

    def observe(self, step):
        pass

    def state_dict(self):
        return {}


def batcher_of(seconds, **others):
    batcher = BestRounds(num_engines=1)
    batcher._forecasts = Forecasts(seconds, **others)
    return batcher


def closed(round, elapsed=1.0):
    """A step in which nothing ran that could be learned from."""
    return SimpleNamespace(generated=elapsed, round=round, ran=[], trained=[], unused=[], num_groups=8)


def kinds(batcher, outlooks, elapsed=1.0):
    found = []
    for outlook in outlooks:
        round = batcher.decide(8, 4, outlook)
        batcher.observe(outlook.waiting, closed(round, elapsed))
        found.append("sort" if round.steps and not round.long else "long" if round.long else "short")
    return found


@pytest.mark.parametrize("more, kind", [(0, "short"), (1, "plain")])
def test_a_run_begins_with_a_short_round_where_every_rollout_has_a_slot_and_else_with_a_plain_step(more, kind):
    first = BestRounds(num_engines=3).decide(int(3 * SLOTS / RATIO / 4) + more, 4, Outlook())
    assert (first.long, first.prompt_ratio) == ((False, RATIO) if kind == "short" else (True, 1.0))
    assert first.why.startswith("short and long rounds, until more is known") == (kind == "short")


@pytest.mark.parametrize(
    "seconds, kind",
    [
        (Seconds(100, 60, 80), "sort"),
        (Seconds(100, 98, 98), "plain"),  # too little
        (Seconds(100, 100, 88), "plain"),  # rounds decode in vain
        (Seconds(100, 100, 84), "stop"),
        (Seconds(100, 80, 74), "sort"),  # which wastes nothing
        (Seconds(100, 80, 70), "stop"),
        (Seconds(100, 120, 110), "plain"),
    ],
)
def test_the_fastest_is_chosen_with_a_handicap_for_what_wastes_tokens(seconds, kind):
    batcher = batcher_of(seconds)
    batcher.decide(8, 4, Outlook())
    assert batcher._kind == kind and batcher.metrics()["plain_round"] == (kind == "plain")


@pytest.mark.parametrize("rewards, kind", [(0, "sort"), (10, "sort"), (2000, "plain")])
def test_waits_for_rewards_are_the_same_for_all_kinds(rewards, kind):
    """What saves 40 of 2,100 seconds is not worth it; and no kind's forecast is corrected for them."""
    batcher = batcher_of(Seconds(100, 60, 80))
    for _ in range(3):
        found = kinds(batcher, [Outlook(rewards=rewards)], elapsed=100.0)
    assert batcher._kind == kind and found and batcher._correction("stop") == pytest.approx(1.0, rel=0.7)


@pytest.mark.parametrize(
    "rate, seconds, kind",
    [
        (1.0, Seconds(100, 100, 100), "plain"),
        (0.5, Seconds(100, 100, 100), "sort"),  # nothing is foreseen
        (0.5, Seconds(100, 99, 100), "plain"),  # too little is
        (0.5, Seconds(100, 100, 90), "plain"),  # rounds may be what is faster
        (0.5, Seconds(100, 100, 70), "stop"),
    ],
)
def test_where_rollouts_queue_frames_gather_what_a_filter_leaves_over(rate, seconds, kind):
    batcher = batcher_of(seconds, queues=True)
    batcher.decide(8, 4, Outlook(rate=rate))
    assert batcher._kind == kind


def test_where_no_rollout_queues_plain_steps_come_before_anything_is_foreseen():
    batcher = batcher_of(Seconds(100, 100, 100))
    batcher.decide(8, 4, Outlook(rate=0.5))
    assert batcher._kind == "plain"


def test_frames_that_took_longer_than_plain_steps_gather_nothing():
    batcher = batcher_of(Seconds(100, 100, 100), queues=True)
    batcher._over = {"plain": [30, 30], "sort": [1.2 * 30, 30]}
    batcher.decide(8, 4, Outlook(rate=0.5))
    assert batcher._kind == "plain"


def test_where_rollouts_queue_rounds_have_to_gain_more():
    for seconds, kind in ((80, "plain"), (74, "stop")):
        batcher = batcher_of(Seconds(100, 100, seconds), queues=True)
        batcher.decide(8, 4, Outlook())
        assert batcher._kind == kind


def test_a_few_per_cent_change_nothing():
    batcher = batcher_of(SORTS)
    kinds(batcher, [Outlook()])
    batcher._forecasts.seconds = Seconds(100, 99, 100)
    assert kinds(batcher, [Outlook()]) == ["sort"]
    batcher._forecasts.seconds = Seconds(100, 101, 100)
    assert kinds(batcher, [Outlook()]) == ["long"]


def test_a_frame_ends_before_anything_else_begins():
    batcher = batcher_of(SORTS)
    assert kinds(batcher, [Outlook()]) == ["sort"]
    batcher._forecasts.seconds = PLAIN
    assert kinds(batcher, [Outlook(framed=5.0)] * 3 + [Outlook(framed=0.4)]) == [*["sort"] * 3, "long"]


def test_a_frame_is_over_once_it_has_had_its_steps_whatever_is_left_of_it():
    batcher = batcher_of(SORTS)
    first = kinds(batcher, [Outlook(left=3.0)])
    batcher._forecasts.seconds = PLAIN
    assert first + kinds(batcher, [Outlook(framed=5.0)] * 3) == ["sort", "sort", "sort", "long"]


def test_short_rounds_end_with_their_long_ones():
    batcher = batcher_of(ROUNDS)
    assert kinds(batcher, [Outlook(), Outlook(waiting=4)]) == ["short", "short"]
    batcher._forecasts.seconds = PLAIN
    waiting = [Outlook(waiting=8)] + [Outlook(waiting=32, framed=framed) for framed in (0.0, 3.0, 2.0, 1.0)]
    assert kinds(batcher, waiting) == ["short"] + ["long"] * 4 and batcher._kind == "stop"
    batcher.decide(8, 4, Outlook())
    assert batcher._kind == "plain"


def test_rounds_that_were_begun_blindly_end_once_two_of_them_say_that_they_are_not_worth_it():
    batcher = BestRounds(num_engines=1)
    assert kinds(batcher, [Outlook()]) == ["short"]
    batcher._forecasts = Forecasts(Seconds(90, 50, 99), is_guess=True)
    assert kinds(batcher, [Outlook(waiting=4)]) == ["short"]
    batcher._forecasts.seconds = Seconds(100, 50, 99)
    assert kinds(batcher, [Outlook(waiting=4)]) == ["short"]  # nothing is known that would sort
    batcher._forecasts.seconds = Seconds(90, 50, 99)
    assert kinds(batcher, [Outlook(waiting=4)]) == ["long"] and batcher._kind == "plain"


def test_what_took_longer_than_forecast_is_corrected():
    """Sorted steps are forecast to take 60 s and take more, so plain ones come."""
    batcher, frame = batcher_of(Seconds(100, 60, 100)), [Outlook(left=10.0)] + [Outlook(framed=5.0)] * 9
    kinds(batcher, [Outlook()], elapsed=100.0)
    batcher = batcher_of(Seconds(100, 60, 100))
    assert kinds(batcher, frame, elapsed=100.0) == ["sort"] * 10
    batcher._over["plain"] = [30, 30]
    assert kinds(batcher, [Outlook()]) == ["sort"]  # once more: a few steps may be odd
    assert kinds(batcher, frame[1:], elapsed=170.0) == ["sort"] * 9
    assert kinds(batcher, [Outlook()]) == ["long"]


def test_what_all_forecasts_are_off_decides_nothing():
    batcher = batcher_of(Seconds(50, 49, 50))
    assert kinds(batcher, [Outlook()] * 20, elapsed=100.0) == ["long"] * 20
    faded = sum(FADE**steps for steps in range(1, 20))  # 19 steps were learned from before the last one
    assert batcher._over["plain"] == pytest.approx([faded * 2, faded])


def test_what_was_tried_little_is_corrected_by_what_all_kinds_were_off():
    batcher = batcher_of(Seconds(100, 105, 100))
    batcher._over = {"plain": [1.5 * 40, 40], "sort": [1.0, 1]}
    batcher.decide(8, 4, Outlook())
    assert batcher._kind == "plain"  # one quick step says little


def test_a_single_step_that_hangs_changes_nothing():
    batcher = batcher_of(Seconds(100, 105, 200))
    batcher._over = {"plain": [30, 30], "sort": [30, 30]}
    found = kinds(batcher, [Outlook()], elapsed=100.0 * 100)
    assert found + kinds(batcher, [Outlook()] * 50, elapsed=100.0) == ["long"] * 51


@pytest.mark.parametrize("seconds", [SORTS, ROUNDS, PLAIN])
def test_all_kinds_log_the_same_names(seconds):
    batcher = batcher_of(seconds)
    batcher.decide(8, 4, Outlook())
    logged = batcher.metrics()
    assert {*logged} == {"long_round", "long_share", "waited", "sorted_round", "plain_round"}
    assert logged["sorted_round"] == (seconds is SORTS) and logged["plain_round"] == (seconds is PLAIN)
    assert logged["long_round"] == 0


def test_what_was_slow_once_is_tried_again_later():
    batcher = batcher_of(Seconds(100, 60, 100))
    batcher._over = {"plain": [30, 30], "sort": [4 * 10, 10]}
    found = kinds(batcher, [Outlook()] * 150, elapsed=100.0)
    assert found[:50] == ["long"] * 50 and "sort" in found[50:]


def test_without_any_forecast_blind_rounds_give_way_to_plain_steps():
    """As where engines do not say when rollouts ran."""
    batcher = batcher_of(None, is_guess=True)
    assert kinds(batcher, [Outlook()] * 5) == ["short", "short", "long", "long", "long"]
    assert batcher._kind == "plain"


def test_rounds_that_leave_nothing_behind_end_without_a_long_one():
    """As where a step may dispatch no more groups than it trains."""
    batcher = batcher_of(ROUNDS)
    assert kinds(batcher, [Outlook(), Outlook(waiting=2)]) == ["short", "short"]
    batcher._forecasts.seconds = PLAIN
    assert kinds(batcher, [Outlook(waiting=2), Outlook(waiting=0)]) == ["short", "long"]


def test_a_first_step_that_asks_for_more_than_the_slots_is_plain():
    groups = int(SLOTS / RATIO / 4)
    first = [BestRounds().decide(groups, 4, Outlook(rate=rate)).long for rate in (1.0, 0.7)]
    assert first == [False, True]


def test_rounds_that_are_left_leave_no_pool_behind():
    batcher = batcher_of(ROUNDS)
    rounds = [Outlook(waiting=32), Outlook(waiting=32, framed=0.0), Outlook(waiting=2, framed=3.0)]
    assert kinds(batcher, rounds) == ["long"] * 3 and batcher.state_dict()["left"] > 0
    batcher._forecasts.seconds = SORTS
    assert kinds(batcher, [Outlook()]) == ["sort"] and batcher.state_dict()["left"] == 0


def test_the_log_says_what_was_chosen_and_why_once():
    batcher, said = batcher_of(SORTS), []
    for _ in range(2):
        round = batcher.decide(8, 4, Outlook())
        batcher.observe(0, closed(round))
        said.append(round.why)
    words = "sorted steps: forecast plain steps 100 s, sorted steps 60 s, short and long rounds 80 s"
    assert said == [words, ""]


def test_a_resumed_run_decides_the_same():
    outlooks = [Outlook(), *[Outlook(waiting=waiting) for waiting in (4, 30, 40, 8, 4, 0)]]
    outlooks += [Outlook(framed=framed) for framed in (0.0, 4.0, 3.0)]
    for seconds in (SORTS, ROUNDS, PLAIN):
        for cut in range(len(outlooks)):
            straight, killed, resumed = (BestRounds(seed=3) for _ in range(3))
            for batcher in (straight, killed):
                batcher._forecasts.forecast = lambda *arguments, seconds=seconds: seconds
                batcher._forecasts.observe = lambda step: None
                kinds(batcher, outlooks[:cut], elapsed=150.0)
            resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
            assert (resumed._over, resumed._taken) == (killed._over, killed._taken) and (cut < 2 or killed._taken[1])
            resumed._forecasts.forecast = lambda *arguments, seconds=seconds: seconds
            assert resumed.decide(8, 4, outlooks[cut]) == straight.decide(8, 4, outlooks[cut])
            assert resumed.state_dict() == straight.state_dict()


@pytest.mark.parametrize("state", [{}, {"kind": "plain", "since_plain": 3}, {"kind": "sort", "frame_left": 4}])
def test_a_run_of_before_goes_on(state):
    """Whose state has no forecasts: the frame is finished, and then the first step comes again."""
    batcher = BestRounds()
    batcher.load_state_dict(state)
    found = kinds(batcher, [Outlook(framed=2.0)])
    assert found == (["sort"] if "frame_left" in state else ["short"])


def test_a_surplus_is_that_of_sorted_steps():
    batcher = BestRounds(prompt_ratio=1.05)
    batcher._forecasts = Forecasts(SORTS)
    assert batcher.decide(20, 4, Outlook()).prompt_ratio == 1.05
    with pytest.raises(ValueError, match="^prompt_ratio must be from 1 to 1.06"):
        BestRounds(prompt_ratio=1.25)


def test_a_plain_step_is_a_long_round():
    assert batcher_of(PLAIN).decide(8, 4, Outlook()) == Round(
        True, 1.0, 4, why=batcher_of(PLAIN).decide(8, 4, Outlook()).why
    )

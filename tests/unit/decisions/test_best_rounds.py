"""Which rounds are chosen by what was measured."""

import json

import pytest

from openrlhf_sagc.decisions.best_rounds import MOST_STEPS, BestRounds
from openrlhf_sagc.decisions.records import Outlook

LONG_TAIL, SHORT_TAIL = 0.9, 0.1


def kinds(batcher, outlooks):
    found = []
    for outlook in outlooks:
        round = batcher.decide(8, 4, outlook)
        batcher.observe(outlook.waiting)
        found.append("sort" if round.steps and not round.long else "long" if round.long else "short")
    return found


def test_a_run_begins_with_a_plain_step():
    first = BestRounds().decide(8, 4, Outlook())
    assert first.long and first.prompt_ratio == 1 and not first.steps


@pytest.mark.parametrize(
    "idle, explained, kind",
    [
        (LONG_TAIL, 0.0, "short"),
        (LONG_TAIL, -3.0, "short"),  # the history misleads
        (LONG_TAIL, 0.9, "sort"),
        (0.7, 0.9, "sort"),
        (0.7, 0.5, "long"),  # the tail is too short for rounds that decode in vain
        (SHORT_TAIL, 0.9, "long"),
    ],
)
def test_the_idle_tail_and_what_history_explains_decide(idle, explained, kind):
    batcher = BestRounds()
    assert kinds(batcher, [Outlook(), Outlook(idle_tail=idle, explained=explained)]) == ["long", kind]
    assert batcher.metrics()["plain_round"] == (kind == "long")


def test_a_frame_ends_before_anything_else_begins():
    batcher = BestRounds()
    known = Outlook(idle_tail=LONG_TAIL, explained=0.9, framed=5.0)
    kinds(batcher, [Outlook(), known._replace(framed=0.0)])
    assert kinds(batcher, [known._replace(explained=0.0)] * 3 + [known._replace(explained=0.0, framed=0.0)]) == [
        *["sort"] * 3,
        "short",
    ]


def test_the_log_says_what_was_chosen_and_why_once():
    batcher, seen = BestRounds(), Outlook(idle_tail=LONG_TAIL, explained=0.93)
    said = []
    for outlook in (Outlook(), seen, seen):
        said.append(batcher.decide(8, 4, outlook).why)
        batcher.observe(0)
    assert said[0] == said[2] == ""
    assert (
        said[1]
        == "sorted steps: the idle tail of plain steps is 90% of them, and history explains 93% of the spread between prompts"
    )


def test_the_idle_tail_is_measured_again():
    batcher = BestRounds()
    seen = Outlook(idle_tail=LONG_TAIL, explained=0.9)
    found = kinds(batcher, [Outlook(), *[seen] * (MOST_STEPS + 2)])
    assert [number for number, kind in enumerate(found) if kind == "long"] == [0, MOST_STEPS + 1]


def test_a_resumed_run_decides_the_same():
    outlooks = [Outlook(), *[Outlook(idle_tail=LONG_TAIL, waiting=waiting) for waiting in (4, 30, 40, 8, 4, 0)]]
    outlooks += [Outlook(idle_tail=LONG_TAIL, explained=0.9, framed=framed) for framed in (0.0, 4.0, 3.0)]
    straight = BestRounds(seed=3)
    for cut in range(len(outlooks)):
        killed, resumed = BestRounds(seed=3), BestRounds(seed=3)
        kinds(killed, outlooks[:cut])
        resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
        straight = BestRounds(seed=3)
        kinds(straight, outlooks[:cut])
        assert [resumed.decide(8, 4, o)[:6] for o in outlooks[cut : cut + 1]] == [
            straight.decide(8, 4, o)[:6] for o in outlooks[cut : cut + 1]
        ]
    other = BestRounds()
    other.load_state_dict({})
    assert other.decide(8, 4, Outlook()).long


def test_a_surplus_is_that_of_sorted_steps():
    batcher = BestRounds(prompt_ratio=1.05)
    kinds(batcher, [Outlook()])
    assert batcher.decide(20, 4, Outlook(idle_tail=LONG_TAIL, explained=0.9)).prompt_ratio == 1.05
    with pytest.raises(ValueError, match="^prompt_ratio must be from 1 to 1.06"):
        BestRounds(prompt_ratio=1.25)

"""Every kind of reward, fast, slow and with one that hangs: ours gives what unpatched OpenRLHF gives. For seconds see the study."""

import asyncio

import pytest
from studies.rewards.cells import KINDS, SPEEDS, Asked, ask, servers, target_of
from studies.rewards.run import combined, worse

SAMPLES = 4


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    with servers(0.02) as addresses:
        folder = tmp_path_factory.mktemp("rewards")
        yield {
            cell: target_of(*cell, 0.02, addresses, folder)
            for cell in [(kind, speed) for kind in KINDS for speed in SPEEDS]
        }


def rewards(arm, targets, **limits):
    """The number of right rewards by cell; all cells are asked at once."""

    async def all_cells():
        return await asyncio.gather(*[ask(arm, target, SAMPLES, **limits) for target in targets.values()])

    return {cell: asked.rewards for cell, asked in zip(targets, asyncio.run(all_cells()), strict=True)}


def test_no_kind_of_reward_is_worth_less_than_unpatched(targets):
    targets = {cell: target for cell, target in targets.items() if cell[1] != "one hang"}
    unpatched, ours = rewards("unpatched", targets), rewards("ours", targets)
    assert {cell: count for cell, count in ours.items() if count < unpatched[cell]} == {}
    assert min(unpatched.values()) == SAMPLES  # each cell is one that OpenRLHF knows how to ask


def test_one_that_hangs_costs_its_own_reward(targets):
    """Unpatched OpenRLHF waits for ever for a function, and so does its step."""
    targets = {cell: target for cell, target in targets.items() if cell[1] == "one hang"}
    ours = rewards("ours", targets, timeout=3.0)
    assert {cell: count for cell, count in ours.items() if count < SAMPLES - 1} == {}


@pytest.mark.parametrize(
    "rewards, seconds, is_worse", [(4, 1.15, False), (4, 1.25, True), (3, 0.5, True), (4, None, True)]
)
def test_the_study_says_where_ours_is_worse(rewards, seconds, is_worse):
    cells = {("dict", "fast"): [Asked(4, 1.0), Asked(rewards, seconds)]}
    assert bool(worse(cells)) is is_worse
    assert (
        combined((Asked(4, 1.0), Asked(3, 0.5))) == (3, 0.5)
        and combined((Asked(4, 1.0), Asked(4, None))).seconds is None
    )


def test_the_study_in_small(study, small):
    hang = {"timeout": 1.0, "limit": 2.0}
    small("rewards.run", KINDS=["dict"], SPEEDS=["fast", "one hang"], REPETITIONS=1, HANG=hang)
    row = (study("rewards", "--samples", 3) / "table.md").read_text().splitlines()[2]
    assert row.startswith("| dict | 3 in ") and "| 2, hangs; 2 in " in row

"""Gains from replays, by hand and from the simulator."""

from argparse import Namespace

import numpy as np
import pytest
from lib.advice.replay import gains, replay, run_once
from lib.advice.switches import Switch
from lib.simulation.costs import CostModel
from lib.simulation.lengths import Trace
from made_traces import write_trace
from scipy import stats
from simulate import parse_arguments

BASE, TAIL = Switch("as it is", "fixed:4", "", False), Switch("tail batching", "fixed:4+tail:1", "--tail", False)
FILTER = Switch("dynamic sampling", "fixed:4", "--filter", True)


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """trace, costs, arguments of small steps."""
    path = write_trace(tmp_path / "t.csv", prompts=12, samples=4)
    flags = ["--trace", str(path), "--batch_size", "4", "--n_samples_per_prompt", "4", "--steps", "3"]
    monkeypatch.setattr("sys.argv", ["simulate.py", *flags])
    arguments = parse_arguments()
    return Trace(path), CostModel.load(arguments.engine), Namespace(**vars(arguments) | {"gpus": 2, "draws": 2})


def figures(effective, **more):
    return {"effective_samples_an_hour": effective, "seconds": 1.0, **more}


def test_gains_are_ratios_with_the_spread_of_the_draws():
    mine, theirs = [120.0, 130.0, 110.0, 125.0], [100.0, 100.0, 105.0, 95.0]
    runs = {(draw, "as it is"): figures(x) for draw, x in enumerate(theirs)}
    runs |= {(draw, "tail batching"): figures(x) for draw, x in enumerate(mine)}
    base, tail = gains([BASE, TAIL], runs).to_dict("records")
    assert (base["gain"], base["low"], base["high"]) == (0, 0, 0) and tail["flags"] == "--tail"
    logs = np.log(np.divide(mine, theirs))
    low, high = stats.t.interval(0.95, 2, loc=logs[0], scale=logs[1:].std(ddof=1))
    assert (tail["low"], tail["high"]) == pytest.approx((np.exp(low) - 1, np.exp(high) - 1))
    assert tail["gain"] == pytest.approx(0.2)


def test_dynamic_sampling_counts_what_it_trains_in_vain_without_it():
    """Half of the groups have a signal: steps that take twice as long and have nothing else are worth as much."""
    runs = {(draw, "as it is"): figures(100.0, signal_share=0.5) for draw in range(4)}
    runs |= {(draw, "dynamic sampling"): figures(50.0, signal_share=0.5) for draw in range(4)}
    assert gains([BASE, FILTER], runs)["gain"].tolist() == pytest.approx([0, 0])
    base = BASE._replace(dynamic_sampling=True)  # both are filtered
    assert gains([base, FILTER], runs)["gain"].tolist() == pytest.approx([0, -0.5])


def test_a_switch_that_cannot_fill_a_step_of_any_draw_has_no_gain():
    runs = {(draw, name): figures(1.0) for draw in range(4) for name in ("as it is", "tail batching")}
    runs[2, "tail batching"] = {"problem": "--max_gen_batches 10 reached"}
    assert gains([BASE, TAIL], runs)[["gain", "low", "high"]].iloc[1].isna().all()


def test_draws_have_prompts_and_seeds_of_their_own_which_all_switches_share(setting):
    trace, costs, arguments = setting
    first = {(draw, switch.name): found for draw, switch, found in replay([BASE, TAIL], *setting, jobs=1)}
    assert len(first) == 6 and len({found["tokens_mean"] for found in first.values()}) == 6
    again = {(draw, switch.name): found for draw, switch, found in replay([BASE, TAIL], *setting, jobs=2)}
    assert again == first
    same = BASE._replace(name="another name")
    assert run_once(same, 1, trace, costs, arguments) == first[1, "as it is"] != first[0, "as it is"]
    samples, seconds = 16, first[0, "as it is"]["seconds"]
    assert first[0, "as it is"]["effective_samples_an_hour"] == pytest.approx(3600 * samples * 3 / 4 / seconds)


def test_prompts_that_are_never_mixed_and_contexts_that_do_not_fit_are_said(setting, tmp_path):
    trace, costs, arguments = setting
    right = Trace(write_trace(tmp_path / "right.csv", prompts=12, samples=4, success=0.999))
    found = run_once(FILTER, 0, right, costs, arguments)
    assert found.keys() == {"problem"} and found["problem"].startswith("--max_gen_batches 10 reached: ")
    small = CostModel(**vars(costs) | {"kv_limit": 260})
    with pytest.raises(ValueError, match="--engine .*h100-7b.json: kv_limit 260 is less than a rollout of"):
        run_once(BASE, 0, trace, small, arguments)

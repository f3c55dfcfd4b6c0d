"""Simulated runs of every switch on the trace and on bootstrap draws of its prompts, and the gains that they show.

Draw 0 is the trace itself with the seed of the command: the run that simulate.py makes with the same flags. Every further
draw has prompts of its own, drawn from the trace's with replacement, and a seed of its own, both shared by all switches.
"""

from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np
import pandas as pd
from lib.advice.switches import Switch
from lib.advice.tail import signal_share, standard_spread
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.lengths import Trace
from lib.simulation.runs import summary, train


def replay(
    switches: list[Switch], trace: Trace, costs: CostModel, arguments: Namespace, jobs: int
) -> Iterator[tuple[int, Switch, dict]]:
    """Draw, switch and figures of every run, in the order in which they end; `jobs` of them at a time.

    Figures are those of `simulation.runs.summary`, `effective_samples_an_hour` and, where the trace knows what is correct,
    `signal_share` of the groups that are rolled out, or only `problem` if a step could not be filled.

    Raises:
        ValueError: a rollout does not fit an engine; the message names the flag.
    """
    runs = [(draw, switch) for draw in range(arguments.draws + 1) for switch in switches]
    if jobs == 1:
        for draw, switch in runs:
            yield draw, switch, run_once(switch, draw, trace, costs, arguments)
        return
    with ProcessPoolExecutor(jobs, initializer=_take, initargs=[trace]) as pool:
        futures = {pool.submit(_run_taken, switch, draw, costs, arguments): (draw, switch) for draw, switch in runs}
        try:
            for future in as_completed(futures):
                yield *futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _take(trace: Trace) -> None:
    """A process of `replay` begins: it gets the trace once, not with every run."""
    global _taken
    _taken = trace


def _run_taken(switch: Switch, draw: int, costs: CostModel, arguments: Namespace) -> dict:
    return run_once(switch, draw, _taken, costs, arguments)


def run_once(switch: Switch, draw: int, trace: Trace, costs: CostModel, arguments: Namespace) -> dict:
    """The figures of one run."""
    source = trace.resampled(np.random.default_rng([arguments.seed, draw])) if draw else trace
    changes = {"seed": arguments.seed + draw, "dynamic_sampling": switch.dynamic_sampling}
    settings = Namespace(**vars(arguments) | changes)
    run = train(parse_policy(switch.policy), arguments.gpus, source, costs, settings)
    try:
        steps = pd.DataFrame([run.step() for _ in range(arguments.steps)])
    except RuntimeError as error:
        return {"problem": f"--max_gen_batches {arguments.max_gen_batches} reached: {error}"}
    except ValueError as error:
        raise ValueError(f"--engine {arguments.engine}: {error}") from None
    effective = steps["samples"] * (1 - 1 / steps["group_size"])
    found = summary(steps) | {"effective_samples_an_hour": 3600 * effective.sum() / steps["seconds"].sum()}
    if trace.has_correct:
        found["signal_share"] = signal_share(source, arguments.n_samples_per_prompt)
    return found


def gains(switches: list[Switch], runs: dict[tuple[int, str], dict]) -> pd.DataFrame:
    """A row a switch: the figures of draw 0, `gain` over the run as it is, and `low` and `high`, the ends of its interval.

    A gain is that in effective samples a second, as a share. N samples in groups of G count as N (G - 1) / G: so many
    independent ones estimate the gradient with the group's mean as the baseline as well, whatever the success rate. A
    switch to dynamic sampling trains groups with a signal alone, and counts them over the share of groups that have one:
    without it the others are trained in vain, and count as well. Intervals are bootstrap's standard ones over prompts, of
    the logarithm of the ratio, with Student's t of as many draws.

    Args:
        switches: the first is the run as it is.
        runs: figures by draw and switch's name.
    """
    base, draws = switches[0], 1 + max(draw for draw, _ in runs)
    rows = []
    for switch in switches:
        ratios = [_ratio(switch, base, runs, draw) for draw in range(draws)]
        logs = np.log(ratios)
        spread = standard_spread(logs[1:])
        low, gain, high = np.expm1([logs[0] - spread, logs[0] + 0 * spread, logs[0] + spread])  # NaN if a draw is
        row = {"switch": switch.name, "policy": switch.policy, "flags": switch.flags, **runs[0, switch.name]}
        rows.append(row | {"gain": gain, "low": low, "high": high})
    return pd.DataFrame(rows)


def _ratio(switch: Switch, base: Switch, runs: dict[tuple[int, str], dict], draw: int) -> float:
    """Effective samples a second over those of the run as it is; NaN if a step of this draw could not be filled."""
    mine, theirs = runs[draw, switch.name], runs[draw, base.name]
    if "problem" in mine or "problem" in theirs:
        return np.nan
    filtered = switch.dynamic_sampling and not base.dynamic_sampling
    share = theirs["signal_share"] if filtered else 1.0
    return mine["effective_samples_an_hour"] / theirs["effective_samples_an_hour"] / share

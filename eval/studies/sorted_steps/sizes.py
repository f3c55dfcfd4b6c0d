"""Whether the default ever loses: generation of each method over sizes of steps, engines and caps, from the first step on."""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from lib.paths import ENGINES
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.epochs import Epochs
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import train
from lib.tables import show
from rich.progress import track

SHAPES = ("128x8", "128x16", "512x16")  # prompts x responses of a step: those of the recipes
GPUS = (1, 4, 16, 64, 256, 1024)
SLOTS = (128, 512)
CAPS = (8192, 16384, 32768)
STEPS, EPISODES = 20, 2  # of an episode without any filter; of a run
MOST_REQUESTED = 2  # rollouts of a step over those it trains, with a filter and a surplus
METHODS = {"plain": "", "stop": "+tail:stop", "sort": "+tail:sort", "auto": "+tail"}


class Cell(NamedTuple):
    """What a run has."""

    prompts: int
    responses: int
    gpus: int
    slots: int
    cap: int
    filter: bool


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what the grid has."""
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES, help="prompts x responses, of sizes")
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS, help="of an engine, of sizes")
    parser.add_argument("--caps", type=int, nargs="+", default=CAPS, help="tokens of a response at most, of sizes")


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """The grid, without engines of more slots than the least where no rollout ever waits for one."""
    fewest = min(arguments.slots)
    grid = itertools.product(arguments.shapes, arguments.gpus or GPUS, arguments.slots, arguments.caps, (False, True))
    for shape, gpus, slots, cap, filters in grid:
        prompts, responses = map(int, shape.split("x"))
        if slots == fewest or MOST_REQUESTED * prompts * responses > fewest * gpus:
            yield Cell(prompts, responses, gpus, slots, cap, filters)


def gains(cell: Cell, seeds: list[int]) -> dict[str, float]:
    """Generation of a step by each method, times as fast as a plain one, and that of the default over the best.

    The seconds of a step are means over all steps of all seeds. Each of them trains as many samples.
    """
    seconds = {}
    for name, word in METHODS.items():
        steps = [one for seed in seeds for one in step_seconds(cell, f"fixed:{cell.responses}{word}", seed)]
        seconds[name] = sum(steps) / len(steps)
    found = {name: seconds["plain"] / own for name, own in seconds.items()}
    return found | {"of the best": found["auto"] / max(found["plain"], found["stop"], found["sort"])}


def step_seconds(cell: Cell, policy: str, seed: int) -> list[float]:
    """Seconds of generation of each step of a run."""
    costs = dataclasses.replace(CostModel.load(ENGINES / "h100-7b.json"), max_running=cell.slots)
    lengths = LogNormal(median=955, between=1.3, within=0.48, cap=cell.cap)
    source = Epochs(lengths, STEPS * cell.prompts, cell.responses, seed, cell.filter)
    settings = {"batch_size": cell.prompts, "n_samples_per_prompt": cell.responses, "prompt_tokens": 256}
    arguments = default_arguments(**settings, seed=seed, dynamic_sampling=cell.filter)
    run = train(parse_policy(policy), cell.gpus, source, costs, arguments)
    steps = []
    while run.queue.episode <= EPISODES:
        steps.append(run.step()["generation_seconds"])
    return steps


def measure(output: Path, arguments: argparse.Namespace) -> None:
    """Write the table of all cells, a row as soon as it is there, and show it with what the default reaches at least."""
    grid, rows = [*cells(arguments)], []
    for cell in track(grid, "simulating"):
        rows.append(cell._asdict() | gains(cell, arguments.seeds))
        table = pd.DataFrame(rows)
        table.to_csv(output / "sizes.csv", index=False, float_format="%.4g")
    show("generation, times as fast as plain steps", table.round(3))
    reached = table["of the best"]
    print(
        f"auto reaches {reached.min():.3f} of the best method at least, and 0.98 in {(reached >= 0.98).sum()} of {len(table)} cells"
    )

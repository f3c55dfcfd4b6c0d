"""What drafts from siblings are worth: public responses replayed, and steps of 7B predicted at that acceptance.

    python eval/studies drafts replay FILE.jsonl --output FOLDER   # a prompt's responses in each line, as texts or tokens
    python eval/studies drafts                                     # the prediction, from replay.csv here
    python eval/studies drafts --output FOLDER                     # from the replay there, if there is one
    python eval/studies drafts table                               # the prediction once more

A replay knows the siblings of a response only as far as they are at that iteration, as all begin together. It does not know
how far the policy moves between two episodes.
"""

import argparse
import dataclasses
import itertools
import time
from pathlib import Path

import numpy as np
import pandas as pd
from lib.intervals import half_of, interval
from lib.paths import ENGINES, study_flags
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.epochs import Epochs
from lib.simulation.flags import default_arguments
from lib.simulation.public_lengths import SETS
from lib.simulation.runs import train
from lib.tables import show
from studies.drafts.replay import AGAIN, read_groups, replay, summary

from openrlhf_sagc.config.settings import SIBLINGS

FOLDER = Path(__file__).parent
GPUS, SEEDS = (16, 128), (0, 1, 2)
PROMPTS = 20 * 128  # of an episode: two frames of ten steps
EPISODES = 2  # the first is without a history, and left out
WITHOUT_ASYNC = 0.05  # of a weights' read: what an iteration takes longer without asynchronous scheduling; assumed
LONGEST_TENTH = "tenth 10 of length"
LAUNCH = 0.2  # of it: what attention takes longer outside of whole graphs; assumed


def replay_files(files: list[Path], longest: int, output: Path) -> None:
    """Show the table of each file; all are in replay.csv of another folder than this one.

    Raises:
        ValueError: there is no file, or it is no such file.
    """
    if not files:
        raise ValueError("replay takes a JSONL file with a prompt's responses in each line")
    parts = [summary(replay(read_groups(path), longest)).assign(file=path.stem) for path in files]
    for path, part in zip(files, parts):
        show(str(path), part.drop(columns="file"))
    output.mkdir(parents=True, exist_ok=True)
    pd.concat(parts).to_csv(output / "replay.csv", index=False, float_format="%.4g")


def least_favourable(file: Path) -> pd.Series:
    """The figures of the longest tenth, with an earlier episode, of the file with the lowest ones.

    Raises:
        ValueError: the replay has none.
    """
    figures = pd.read_csv(file)
    figures = figures[(figures["scenario"] == AGAIN) & (figures["responses"] == LONGEST_TENTH)]
    if figures.empty:
        raise ValueError(f"{file} has no {LONGEST_TENTH}: replay ten responses or more")
    return figures.loc[figures["tokens an iteration"].idxmin()]


def costs_with(drafts: pd.Series | None) -> CostModel:
    """An engine's costs with drafts of such figures, or without any."""
    costs = CostModel.load(ENGINES / "h100-7b.json")
    if drafts is None:
        return costs
    return dataclasses.replace(
        costs,
        tokens_per_iteration=drafts["tokens an iteration"],
        drafted=drafts["drafted an iteration"],
        drafting=(WITHOUT_ASYNC + LAUNCH) * costs.decode_base,
    )


def seconds_of(lengths: str, gpus: int, seed: int, drafts: pd.Series | None) -> pd.Series:
    """Means over the steps of the later episodes: seconds of generation and of a step."""
    source = Epochs(SETS[lengths], PROMPTS, 8, seed)
    settings = {"batch_size": 128, "n_samples_per_prompt": 8, "prompt_tokens": 256, "dynamic_sampling": False}
    run = train(
        parse_policy("fixed:8+tail"), gpus, source, costs_with(drafts), default_arguments(**settings, seed=seed)
    )
    steps = []
    while run.queue.episode <= EPISODES:
        is_later = run.queue.episode > 1
        step = run.step()
        steps += [step] * is_later
    return pd.DataFrame(steps)[["generation_seconds", "seconds"]].mean()


def predict(drafts: pd.Series, arguments: argparse.Namespace, file: Path) -> None:
    """Write a row a run with each set of lengths, as soon as it is there."""
    rows, grid, began = [], [*itertools.product(SETS, arguments.gpus, arguments.seeds)], time.monotonic()
    for number, (lengths, count, seed) in enumerate(grid, 1):
        without, with_drafts = (seconds_of(lengths, count, seed, each) for each in (None, drafts))
        row = {"lengths": lengths, "gpus": count, "seed": seed}
        row |= {f"{name}, times": without[name] / with_drafts[name] for name in without.index}
        rows.append(
            row | {"generation": without["generation_seconds"], "with drafts": with_drafts["generation_seconds"]}
        )
        pd.DataFrame(rows).to_csv(file, index=False, float_format="%.4g")
        left = (time.monotonic() - began) / number * (len(grid) - number) / 60
        print(f"{number} of {len(grid)} rows, some {left:.0f} minutes left", flush=True)


def times_as_fast(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each set of lengths and number of GPUs, with 95 % intervals over the seeds."""
    found = []
    for (lengths, gpus), own in rows.groupby(["lengths", "gpus"], sort=False):
        row: dict[str, object] = {"lengths": lengths, "gpus": gpus}
        for name, title in (("generation_seconds", "generation"), ("seconds", "whole step")):
            logs = np.log(own[f"{name}, times"])
            row[f"{title}, times as fast"] = interval(np.exp(logs.mean()), np.exp(half_of(logs)), multiplied=True)
        found.append(row)
    return pd.DataFrame(found)


def main() -> None:
    parser = study_flags(__doc__, FOLDER)
    parser.add_argument("part", nargs="?", choices=("replay", "predict", "table"), default="predict")
    parser.add_argument("files", nargs="*", type=Path, help="JSONL of a replay")
    parser.add_argument("--longest", type=int, default=SIBLINGS["num_speculative_tokens"], help="tokens of a draft")
    parser.add_argument("--gpus", type=int, nargs="+", default=[*GPUS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[*SEEDS])
    arguments = parser.parse_args()
    if arguments.longest < 1:
        raise ValueError(f"--longest {arguments.longest} must be at least 1")
    if arguments.part != "replay" and arguments.files:
        raise ValueError(f"{arguments.part} takes no files: use replay {arguments.files[0]}")
    replayed, predicted = (arguments.output / name for name in ("replay.csv", "predicted.csv"))
    if arguments.part == "replay":
        replay_files(arguments.files, arguments.longest, arguments.output)
        return
    if arguments.part == "predict":
        arguments.output.mkdir(parents=True, exist_ok=True)
        predict(least_favourable(replayed if replayed.exists() else FOLDER / "replay.csv"), arguments, predicted)
    if not predicted.exists():
        raise ValueError(
            f"{predicted} is not there: make it by python eval/studies drafts --output {arguments.output}"
        )
    show("auto with drafts against auto without, later episodes", times_as_fast(pd.read_csv(predicted)))

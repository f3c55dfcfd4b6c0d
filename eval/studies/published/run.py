"""Seconds that others have published of their steps, beside what the simulator predicts from the same sizes.

published.csv has a row a measurement: where it is from, what a step is, and its seconds. Costs are the roofline of
lib/simulation/roofline.py, the same for all. Nobody publishes how unlike the lengths are, so that is assumed: SPREADS. It writes
predicted.csv, and prints the table of the README.
"""

import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from lib.paths import study_flags
from lib.policies import parse_policy
from lib.simulation.cluster import Cluster
from lib.simulation.costs import CostModel
from lib.simulation.engine import Request
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal, capped_mean
from lib.simulation.roofline import CARDS, roofline
from lib.simulation.runs import train
from lib.simulation.work import Work
from lib.tables import markdown
from rich.progress import track
from scipy.optimize import brentq

FOLDER = Path(__file__).parent
SPREADS = {"wide": (1.3, 0.48), "narrow": (0.41, 0.23)}  # log-sd between prompts and within, of two public sets
MEDIAN = 955  # tokens, where no mean length is known
SLOTS = 1024  # rollouts of an engine at a time, vLLM's default on such cards
STEPS, SEEDS = 5, (0, 1)  # a period of tail batching
OUTPUTS = ("source", "part", "mean_from", "seconds")  # the other columns say what is simulated
SIZES = "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size vocab_size head_dim"
MODELS = {  # of the models' config.json; none of them ties its embeddings
    "Llama-3.1-8B": (4096, 32, 32, 8, 14336, 128256, 128),
    "Qwen2.5-7B": (3584, 28, 28, 4, 18944, 152064, 128),
    "Qwen2.5-14B": (5120, 48, 40, 8, 13824, 152064, 128),
    "Qwen2.5-32B": (5120, 64, 40, 8, 27648, 152064, 128),
    "Qwen3-8B": (4096, 36, 32, 8, 12288, 151936, 128),
    "Qwen3-32B": (5120, 64, 64, 8, 25600, 151936, 128),
    "Qwen2-72B": (8192, 80, 64, 8, 29568, 152064, 128),
}


class Cell(NamedTuple):
    """What is simulated. `trainers` are GPUs of the actors alone, one step behind the engines; 0: all GPUs take turns."""

    model: str
    card: str
    gpus: int
    trainers: int
    engine_gpus: int
    rank_gpus: int
    prompts: int
    samples: int
    optimizer_steps: int
    passes: int  # forward passes of the samples before they are trained: old log-probabilities, a reference model
    prompt_tokens: int
    mean_tokens: float
    cap: int
    memory: float
    policy: str

    @property
    def costs(self) -> CostModel:
        config = dict(zip(SIZES.split(), MODELS[self.model]))
        return roofline(config, self.engine_gpus, self.memory, SLOTS, card=CARDS[self.card])

    def lengths(self, spread: str) -> LogNormal:
        """Of the mean, cut at the cap."""
        between, within = SPREADS[spread]
        median = MEDIAN
        if not math.isnan(self.mean_tokens):

            def beyond(log: float) -> float:
                return capped_mean(np.array(log), math.hypot(between, within), self.cap) - self.mean_tokens

            median = math.exp(brentq(beyond, 0, 30))
        return LogNormal(median, between, within, self.cap)


@cache
def parts_of(cell: Cell, spread: str) -> dict[str, float]:
    """Mean seconds of a step and its parts, by the names of published.csv."""
    steps = []
    for seed in SEEDS:
        arguments = default_arguments(
            batch_size=cell.prompts,
            n_samples_per_prompt=cell.samples,
            prompt_tokens=cell.prompt_tokens,
            dynamic_sampling=False,
            seed=seed,
        )
        work = Work(actor_gpus=cell.trainers, optimizer_steps=cell.optimizer_steps, rank_gpus=cell.rank_gpus)
        run = train(parse_policy(cell.policy), cell.gpus, cell.lengths(spread), cell.costs, arguments, work)
        steps += [run.step() for _ in range(STEPS)]
    mean = pd.DataFrame(steps).mean()
    generation, update, passes = (
        mean["generation_seconds"],
        mean["train_seconds"],
        cell.passes * mean["experience_seconds"],
    )
    busy = max(generation, passes + update) if cell.trainers else generation + passes + update
    parts = {"generation": generation, "old log-probs": passes, "update": update, "step": busy + mean["sync_seconds"]}
    return {name: float(seconds) for name, seconds in parts.items()}


def decoding(cell: Cell) -> float:
    """Seconds in which an engine decodes `cap` tokens of each of the prompts' rollouts side by side."""
    cluster = Cluster(cell.costs, 1)
    cluster.dispatch([Request(cell.prompt_tokens, cell.cap, number) for number in range(cell.prompts)])
    cluster.ended()
    return cluster.now


def predicted(row: dict) -> dict[str, float]:
    """Seconds of a row of published.csv by the spread of lengths, and the wide one's error."""
    cell, part = Cell(**{name: row[name] for name in Cell._fields}), row["part"]
    found = {name: decoding(cell) if part == "1,000 tokens" else parts_of(cell, name)[part] for name in SPREADS}
    return found | {"error_percent": 100 * (found["wide"] / row["seconds"] - 1)}


def report(table: pd.DataFrame) -> str:
    """The table as Markdown, with how many cells are how far off, without those that a mean length is from."""
    titles = [
        "source",
        "part",
        "model, GPUs",
        "samples",
        "tokens: mean, most",
        "published s",
        "predicted",
        "error",
        "narrow",
    ]
    rows = []
    for row in table.to_dict("records"):
        apart = f", {row['trainers']} of them train" if row["trainers"] else ""
        tail = ", tail batching" if "tail" in row["policy"] else ""
        mark = "" if row["mean_from"] == "published" else "\\*"
        mean = "?" if math.isnan(row["mean_tokens"]) else f"{row['mean_tokens']:,.0f}{mark}"
        cells = [row["source"], row["part"] + tail, f"{row['model']}, {row['gpus']} {row['card']}{apart}"]
        cells += [f"{row['prompts']} x {row['samples']}", f"{mean}, {row['cap']:,}"]
        cells += [f"{row[name]:,.4g}" for name in ("seconds", "wide")]
        cells += ["the mean is from here" if row["mean_from"] == "here" else f"{row['error_percent']:+.0f} %"]
        rows.append([*cells, f"{row['narrow']:,.4g}"])
    errors = table.loc[table["mean_from"] != "here", "error_percent"].abs()
    within = ", ".join(f"{(errors <= most).sum()} within {most} %" for most in (10, 25, 50))
    counts = f"Of {len(errors)} cells {within}; the median error is {errors.median():.0f} %."
    return f"{markdown(titles, rows, 'llllrrrrr')}\n{counts}\n"


def main() -> None:
    output = study_flags(__doc__, FOLDER).parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    rows = pd.read_csv(FOLDER / "published.csv").fillna({"policy": ""}).to_dict("records")
    table = pd.DataFrame([row | predicted(row) for row in track(rows, "simulated cells")])
    table.to_csv(output / "predicted.csv", index=False, float_format="%.5g")
    print(report(table))

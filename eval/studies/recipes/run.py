"""Seconds of a step of each GPU recipe, simulated: with the engine settings of OpenRLHF's own scripts, and as shipped.

OpenRLHF's: 128 rollouts at a time, without CUDA graphs, at 0.6 of the memory. As shipped: what train_scripts/engine_flags.py
makes of 0.8 of the memory, with graphs. Without graphs an iteration takes at least what the launches of its kernels do, which is
assumed to be 10 or 18 ms. Nothing is stopped or sorted. It writes predicted.csv and tensor_parallel.csv.

python eval/studies recipes tail_batching    # instead: placed rollouts and tail batching on the engines as shipped
"""

import itertools
import runpy
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from lib.paths import ROOT, study_flags
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.roofline import H100, MEMORY, roofline
from lib.simulation.runs import train
from lib.simulation.work import Work
from lib.tables import show
from rich.progress import track

ENGINE_FLAGS = runpy.run_path(str(ROOT / "train_scripts/engine_flags.py"))
USUAL_SLOTS = 128
OPENRLHF_SHARE, SHARE = 0.6, 0.8  # of the card for engines: of OpenRLHF's scripts, and of ours
LAUNCHES = (0.018, 0.010)  # seconds of an iteration without graphs at least
STEPS, SEEDS = 3, (0, 1, 2)
EPISODES, EPISODE = 3, 10  # of tail_batching: prompts come again after so many steps, on average
LENGTHS = LogNormal(median=955, between=1.3, within=0.48, cap=0)  # each recipe has a cap of its own
CONFIGS = runpy.run_path(str(ROOT / "train_scripts/recipe_memory.py"))["CONFIGS"]


class Recipe(NamedTuple):
    """The sizes of a script. `longest` is --data.max_len, `cap` the tokens of a response at most, `trained` --train.batch_size."""

    model: str
    gpus: int
    ranks: int
    prompts: int
    samples: int
    longest: int
    cap: int
    trained: int


RECIPES = {  # a test has these of the scripts; the asynchronous one does not wait for its longest rollout
    "dapo_qwen2.5_1.5b.sh": Recipe("Qwen2.5-1.5B", 8, 1, 128, 16, 10240, 8192, 128),
    "dapo_qwen2.5_7b.sh": Recipe("Qwen2.5-7B", 8, 2, 512, 16, 22528, 20480, 512),
    "dapo_qwen2.5_32b_multinode.sh": Recipe("Qwen2.5-32B", 64, 4, 512, 16, 10240, 8192, 512),
    "multi_turn_agent.sh": Recipe("Qwen2.5-7B", 8, 2, 128, 8, 16384, 16384, 256),
}


def slots_of(recipe: Recipe, share: float = SHARE) -> int:
    """What the script's engines decode at a time."""
    tokens = MEMORY["kv_tokens"](CONFIGS[recipe.model], share * H100.gb, recipe.ranks)
    return ENGINE_FLAGS["slots_of"](tokens, recipe.longest)


def seconds_of(recipe: Recipe, share: float, slots: int, launch: float) -> float:
    """Mean seconds of a step."""
    costs = roofline(CONFIGS[recipe.model], recipe.ranks, share, slots, launch)
    return means_of(recipe, costs, f"fixed:{recipe.samples}", STEPS)["seconds"]


def means_of(recipe: Recipe, costs: CostModel, policy: str, steps: int, prompts: int = 0) -> pd.Series:
    """Means over the steps of all seeds, of so many prompts that come again and again; with 0 each is a new one."""
    work = Work(optimizer_steps=recipe.prompts * recipe.samples // recipe.trained)
    lengths = LENGTHS._replace(cap=recipe.cap, prompts=prompts)
    settings = {"batch_size": recipe.prompts, "n_samples_per_prompt": recipe.samples, "prompt_tokens": 256}
    found = []
    for seed in SEEDS:
        arguments = default_arguments(**settings, dynamic_sampling=False, seed=seed)
        run = train(parse_policy(policy), recipe.gpus, lengths, costs, arguments, work)
        found += [run.step() for _ in range(steps)]
    return pd.DataFrame(found).mean()


def of_settings(name: str, recipe: Recipe) -> list[dict]:
    """A row for each launch cost: OpenRLHF's settings, one change alone, and both."""
    slots, rows = slots_of(recipe), []
    shipped, graphs = seconds_of(recipe, SHARE, slots, 0.0), seconds_of(recipe, OPENRLHF_SHARE, USUAL_SLOTS, 0.0)
    for launch in LAUNCHES:
        before = seconds_of(recipe, OPENRLHF_SHARE, USUAL_SLOTS, launch)
        row = {"script": name, "launch ms": 1000 * launch, "slots": slots, "OpenRLHF's settings": before}
        row |= {"more slots": seconds_of(recipe, SHARE, slots, launch)}
        rows.append(row | {"graphs": graphs, "as shipped": shipped, "times as fast": before / shipped})
    return rows


def of_tensor_parallel(name: str, recipe: Recipe) -> dict:
    """Seconds as shipped, but with engines of 1 to 8 GPUs; empty where a GPU does not hold its part."""
    row: dict[str, object] = {"script": name, "shipped": recipe.ranks}
    for ranks in (1, 2, 4, 8):
        own, seconds = recipe._replace(ranks=ranks), None
        if recipe.gpus >= ranks:
            with suppress(ValueError):
                seconds = seconds_of(own, SHARE, slots_of(own), 0.0)
        row[f"TP {ranks}"] = seconds
    return row


def of_tail_batching(name: str, recipe: Recipe) -> dict:
    """Percent of the seconds as shipped with placed rollouts, and with the default of tail batching, which places them too."""
    costs = roofline(CONFIGS[recipe.model], recipe.ranks, SHARE, slots_of(recipe), 0.0)
    plain, placed, auto = (
        means_of(recipe, costs, f"fixed:{recipe.samples}{word}", EPISODES * EPISODE, EPISODE * recipe.prompts)
        for word in ("", "+lengths", "+tail")
    )
    row: dict[str, object] = {"script": name}
    for title, own in (("placed", placed), ("tail batching", auto)):
        row |= {f"{title}, generation": 100 * own["generation_seconds"] / plain["generation_seconds"]}
        row |= {f"{title}, step": 100 * own["seconds"] / plain["seconds"]}
    return row | {"tokens in vain": 100 * auto["wasted_tokens"] / auto["decoded_tokens"]}


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("part", choices=["engines", "tail_batching"], nargs="?", default="engines")
    arguments = parser.parse_args()
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    if arguments.part == "tail_batching":
        begin, rows = time.monotonic(), []
        for number, item in enumerate(RECIPES.items(), 1):
            rows.append(of_tail_batching(*item))
            print(
                f"{number} of {len(RECIPES)} scripts after {(time.monotonic() - begin) / 60:.0f} minutes", flush=True
            )
        table = pd.DataFrame(rows)
        table.to_csv(output / "tail_batching.csv", index=False, float_format="%.4g")
        show("Percent of the seconds of plain steps as shipped", table)
        return
    recipes = track([*RECIPES.items()], "simulating")
    rows = [(of_settings(*item), of_tensor_parallel(*item)) for item in recipes]
    settings = pd.DataFrame(itertools.chain.from_iterable(settings for settings, _ in rows))
    engines = pd.DataFrame(row for _, row in rows)
    for file, table in (("predicted.csv", settings), ("tensor_parallel.csv", engines)):
        table.to_csv(output / file, index=False, float_format="%.4g")
    show("Predicted seconds of a step", settings)
    show("Predicted seconds of a step as shipped, by GPUs of an engine", engines)

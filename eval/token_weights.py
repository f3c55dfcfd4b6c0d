"""What each tenth of prompts has of the tokens and of the update, in plain steps and with tail batching.

Every run is simulated: Qwen2.5-7B on H100s by a roofline (eval/engines/h100-7b.json), 128 prompts x 8 responses a step,
log-normal lengths of 2,000 tokens and at most 16,384, whose prompts differ by a log-sd of --spreads. `by round` weighs
every round the same, as before; `weighed` is training's default. The shares are of the last 100 steps.
"""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from common.paths import ENGINES, RESULTS, check_output_file
from common.plots import plt, save
from common.policies import parse_policy
from common.tables import show
from rich.progress import track
from simulation.costs import CostModel
from simulation.flags import default_arguments
from simulation.lengths import LogNormal
from simulation.runs import train

WARM_UP, STEPS = 20, 100
SCHEMES = {
    "plain steps": ("fixed:8", "plain"),
    "by round": ("fixed:8+tail:1", "round"),
    "weighed": ("fixed:8+tail:1", "plain"),
}


def shares(scheme: str, spread: float, gpus: int, seed: int) -> pd.DataFrame:
    """A row for each tenth of prompts, the shortest first."""
    policy, token_weight = SCHEMES[scheme]
    settings = default_arguments(
        batch_size=128,
        n_samples_per_prompt=8,
        prompt_tokens=256,
        dynamic_sampling=False,
        seed=seed,
        token_weight=token_weight,
    )
    source = LogNormal.parse(f"lognormal:median=2000,between={spread},within=0.6,cap=16384")
    run = train(parse_policy(policy), gpus, source, CostModel.load(ENGINES / "h100-7b.json"), settings)
    largest = 1.0
    for _ in range(WARM_UP + STEPS):
        largest = max(largest, run.step()["step_weight"])
    tokens_10, update_10 = run.planner.token_weights.tenths()  # type: ignore[union-attr]
    return pd.DataFrame(
        {
            "spread": spread,
            "gpus": gpus,
            "scheme": scheme,
            "tenth": range(1, 11),
            "tokens": tokens_10,
            "update": update_10,
            "weight": update_10 / tokens_10,
            "largest step": largest,
        }
    )


def compare(spreads: Sequence[float], gpus: Sequence[int], seed: int) -> pd.DataFrame:
    """The rows of all runs; `of plain` is a tenth's weight over that in plain steps."""
    runs = list(itertools.product(spreads, gpus, SCHEMES))
    rows = pd.concat([shares(scheme, spread, number, seed) for spread, number, scheme in track(runs, "simulating")])
    plain = rows[rows["scheme"] == "plain steps"].set_index(["spread", "gpus", "tenth"])["weight"]
    places = pd.MultiIndex.from_frame(rows[["spread", "gpus", "tenth"]])
    return rows.assign(**{"of plain": rows["weight"].to_numpy() / plain.loc[places].to_numpy()})


def plot(rows: pd.DataFrame, path: Path) -> None:
    """The weight of each tenth, a panel a spread, of the fewest GPUs."""
    rows = rows[rows["gpus"] == rows["gpus"].min()]
    spreads = rows["spread"].unique()
    figure, axes = plt.subplots(
        1, len(spreads), figsize=(3.2 * len(spreads), 3), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, spread in zip(axes[0], spreads):
        for scheme, marker in zip(SCHEMES, "o^s"):
            run = rows[(rows["spread"] == spread) & (rows["scheme"] == scheme)]
            axis.plot(run["tenth"], run["weight"], marker=marker, markersize=4, label=scheme)
        axis.set_title(f"spread between prompts {spread:g}", fontsize="small")
        axis.set_xlabel("tenth of prompts by length")
        axis.set_xticks(range(1, 11))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("share of the update\nover share of the tokens")
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize="small")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.4, 0.8, 1.3], help="log-sd between prompts")
    parser.add_argument("--gpus", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--csv", type=Path, default=RESULTS / "token_weights" / "shares.csv", help="file for the table"
    )
    parser.add_argument(
        "--plot", type=Path, default=RESULTS / "token_weights" / "shares.png", help="file for the plot"
    )
    arguments = parser.parse_args()
    for name in ("csv", "plot"):
        getattr(arguments, name).parent.mkdir(parents=True, exist_ok=True)
        check_output_file(name, getattr(arguments, name))
    rows = compare(arguments.spreads, arguments.gpus, arguments.seed)
    rows.to_csv(arguments.csv, index=False, float_format="%.4g")
    plot(rows, arguments.plot)
    ends = rows[rows["tenth"].isin([1, 10])]
    show("the shortest and the longest tenth of prompts", ends.round(3))
    worst = rows[rows["scheme"] == "weighed"]["of plain"].sub(1).abs().max()
    print(f"weighed, every tenth is within {100 * worst:.1f} % of plain steps")


if __name__ == "__main__":
    main()

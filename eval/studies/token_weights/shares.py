"""Shares of the tokens and of the update, simulated: 128 prompts x 8 responses a step, lengths of three spreads."""

import itertools
from pathlib import Path

import pandas as pd
from lib.paths import ENGINES
from lib.plots import plt, save
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import started
from lib.tables import show
from rich.progress import track

WARM_UP, STEPS = 20, 100
SPREADS, GPUS = (0.4, 0.8, 1.3), (16, 128)  # log-sd between prompts
SCHEMES = {  # `by round` weighs every round the same, `weighed` is training's default
    "plain steps": ("fixed:8", "plain"),
    "by round": ("fixed:8+tail:1", "round"),
    "weighed": ("fixed:8+tail:1", "plain"),
}


def shares(scheme: str, spread: float, gpus: int) -> pd.DataFrame:
    """A row for each tenth of prompts, the shortest first, of the last 100 steps."""
    policy, token_weight = SCHEMES[scheme]
    source = LogNormal(median=2000, between=spread, within=0.6, cap=16384)
    run = started(policy, gpus, source, ENGINES / "h100-7b.json", token_weight=token_weight)
    largest = max(1.0, *(run.step()["step_weight"] for _ in range(WARM_UP + STEPS)))
    tokens_10, update_10 = run.planner.token_weights.tenths()
    row = {"spread": spread, "gpus": gpus, "scheme": scheme, "tenth": range(1, 11), "tokens": tokens_10}
    row |= {"update": update_10, "weight": update_10 / tokens_10, "largest step": largest}
    return pd.DataFrame(row)


def compare() -> pd.DataFrame:
    """The rows of all runs; `of plain` is a tenth's weight over that in plain steps."""
    runs = track([*itertools.product(SPREADS, GPUS, SCHEMES)], "simulating")
    rows = pd.concat([shares(scheme, spread, gpus) for spread, gpus, scheme in runs])
    plain = rows[rows["scheme"] == "plain steps"].set_index(["spread", "gpus", "tenth"])["weight"]
    places = pd.MultiIndex.from_frame(rows[["spread", "gpus", "tenth"]])
    return rows.assign(**{"of plain": rows["weight"].to_numpy() / plain.loc[places].to_numpy()})


def plot(rows: pd.DataFrame, path: Path) -> None:
    """The weight of each tenth, a panel a spread, of the fewest GPUs."""
    figure, axes = plt.subplots(1, len(SPREADS), figsize=(9.6, 3), sharey=True, squeeze=False, layout="constrained")
    for axis, spread in zip(axes[0], SPREADS):
        for scheme, marker in zip(SCHEMES, "o^s"):
            run = rows[(rows["spread"] == spread) & (rows["scheme"] == scheme) & (rows["gpus"] == GPUS[0])]
            axis.plot(run["tenth"], run["weight"], marker=marker, markersize=4, label=scheme)
        axis.set_title(f"spread between prompts {spread:g}", fontsize="small")
        axis.set_xlabel("tenth of prompts by length")
        axis.set_xticks(range(1, 11))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("share of the update\nover share of the tokens")
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].legend(fontsize="small")
    save(figure, path)


def write(folder: Path) -> None:
    """shares.csv and shares.png."""
    rows = compare()
    rows.to_csv(folder / "shares.csv", index=False, float_format="%.4g")
    plot(rows, folder / "shares.png")
    show("the shortest and the longest tenth of prompts", rows[rows["tenth"].isin([1, 10])].round(3))

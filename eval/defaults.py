"""What the controller's flags do: each is varied around its default in the simulation of eval/simulate.py.

The lengths are those of the measured trace (CPU stack), and lengths like a reasoning model's (64 H100s). It writes
defaults.csv and defaults.png.
"""

import argparse
from pathlib import Path

import pandas as pd
from common.paths import ENGINES, RESULTS, output_folder
from common.plots import plt, save
from common.policies import parse_policy
from rich.console import Console
from rich.progress import Progress
from simulation.costs import CostModel
from simulation.flags import add_package_flags
from simulation.lengths import LogNormal, Trace
from simulation.runs import train

DEFAULTS = {"max_straggler_rate": 0.2, "straggler_ratio": 2.5, "tradeoff": 2.0, "discount": 0.98}
VALUES = {
    "max_straggler_rate": (0.05, 0.1, 0.2, 0.3, 0.4, 0.6),
    "straggler_ratio": (1.75, 2.0, 2.5, 3.0, 4.0),
    "tradeoff": (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    "discount": (0.8, 0.9, 0.95, 0.98, 0.99, 1.0),
}
STEPS = {"first": 50, "all": 400}
SETTINGS = {
    "countdown": {
        "source": lambda: Trace(RESULTS / "simulate/countdown.csv"),
        "engine": ENGINES / "cpu-2-cores.json",
        "gpus": 1,
        "batch_size": 16,
        "prompt_tokens": 20,
    },
    "reasoning": {
        "source": lambda: LogNormal.parse("lognormal:median=955,between=1.3,within=0.48,cap=16384"),
        "engine": ENGINES / "h100-7b.json",
        "gpus": 64,
        "batch_size": 64,
        "prompt_tokens": 256,
    },
}
PANELS = {
    "straggler_rate_first": f"straggler rate, first {STEPS['first']} steps",
    "straggler_rate": f"straggler rate, {STEPS['all']} steps",
    "group_size": "mean group size",
    "changes": "changes of size a step",
    "seconds": "s a step",
}


def arguments_of(setting: dict, hold: str, flags: dict[str, float], seed: int) -> argparse.Namespace:
    """The arguments of simulate.py."""
    parser = argparse.ArgumentParser()
    add_package_flags(parser)
    taken = {name: setting[name] for name in ("batch_size", "prompt_tokens", "engine")}
    taken |= {"n_samples_per_prompt": 8, "hold": hold, "dynamic_sampling": False, "seed": seed, "objective": "size"}
    return argparse.Namespace(**{**vars(parser.parse_args([])), **taken, **flags})


def measure(setting: dict, hold: str, flags: dict[str, float], seed: int) -> dict[str, float]:
    """One run: means over its steps."""
    arguments = arguments_of(setting, hold, flags, seed)
    run = train(
        parse_policy("sagc"),
        setting["gpus"],
        setting["source"](),
        CostModel.load(setting["engine"]),
        arguments,
    )
    steps = pd.DataFrame([run.step() for _ in range(STEPS["all"])])
    return {
        "straggler_rate_first": steps["straggler_rate"][: STEPS["first"]].mean(),
        "straggler_rate": steps["straggler_rate"].mean(),
        "group_size": steps["group_size"].mean(),
        "changes": (steps["group_size"].diff().iloc[1:] != 0).mean(),
        "seconds": steps["seconds"].mean(),
    }


def sweep(seeds: list[int]) -> pd.DataFrame:
    """A row for each setting, hold, flag and value: means over the seeds."""
    runs = [
        (name, hold, flag, value)
        for name in SETTINGS
        for hold in ("samples", "prompts")
        for flag, values in VALUES.items()
        for value in values
    ]
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for name, hold, flag, value in progress.track(runs, description="simulating"):
            measured = [measure(SETTINGS[name], hold, {**DEFAULTS, flag: value}, seed) for seed in seeds]
            row = {"lengths": name, "hold": hold, "flag": flag, "value": value}
            rows.append(row | pd.DataFrame(measured).mean().to_dict())
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame, path: Path) -> None:
    """A row a flag, a panel a figure; a line for each of lengths and hold, a grey line at the default."""
    size = (3 * len(PANELS), 0.4 + 2.5 * len(VALUES))
    figure, axes = plt.subplots(len(VALUES), len(PANELS), figsize=size, squeeze=False, layout="constrained")
    for line, (flag, of_flag) in zip(axes, rows.groupby("flag", sort=False)):
        for axis, (panel, label) in zip(line, PANELS.items()):
            for color, (name, of_name) in zip(("C0", "C3"), of_flag.groupby("lengths", sort=False)):
                for style, (hold, run) in zip(("-", "--"), of_name.groupby("hold", sort=False)):
                    heights = run[panel]
                    if panel == "seconds":
                        heights = heights / heights[run["value"] == DEFAULTS[flag]].item()
                    axis.plot(run["value"], heights, style, color=color, marker=".", label=f"{name}, {hold}")
            if panel.startswith("straggler_rate"):
                limits = VALUES[flag] if flag == "max_straggler_rate" else [DEFAULTS["max_straggler_rate"]] * 2
                ends = VALUES[flag] if flag == "max_straggler_rate" else axis.get_xlim()
                axis.plot(ends, limits, color="black", linestyle=":", linewidth=1)
            axis.axvline(DEFAULTS[flag], color="0.8", zorder=0)
            if flag == "tradeoff":
                axis.set_xscale("log")
            axis.set_xlabel(flag, fontsize="small")
            axis.set_title(label + (", over the default's" if panel == "seconds" else ""), fontsize="small")
            axis.tick_params(labelsize="small")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    save(figure, path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=output_folder, default=RESULTS / "defaults", help="folder")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = sweep(arguments.seeds)
    rows.to_csv(arguments.output / "defaults.csv", index=False, float_format="%.4g")
    plot(rows, arguments.output / "defaults.png")
    table = rows[rows.apply(lambda row: row["value"] == DEFAULTS[row["flag"]], axis=1)].drop_duplicates(
        ["lengths", "hold"]
    )
    print(table.drop(columns=["flag", "value"]).to_string(index=False, float_format=lambda number: f"{number:.3g}"))


if __name__ == "__main__":
    main()

"""The advice in one screen, and its plot."""

import textwrap
from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
from lib.advice.calibration import Calibration
from lib.advice.tail import StepTail
from lib.advice.verdict import Verdict, interval
from lib.plots import plt, save
from lib.simulation.lengths import Trace
from rich.console import Console
from rich.table import Table

WIDTH = 110
PARTS = {"generation": "C0", "experience": "C2", "train": "C1", "sync": "0.5"}


def describe_trace(path: Path, trace: Trace) -> str:
    """Its size and lengths in a line."""
    tokens, counts_P = np.concatenate(trace.tokens_by_prompt), trace.samples_per_prompt
    median, high, longest = np.quantile(tokens, [0.5, 0.99, 1])
    fewest, most = counts_P.min(), counts_P.max()
    rollouts = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    right = "" if trace.right_by_prompt is None else f", {trace.right_by_prompt.sum() / counts_P.sum():.0%} correct"
    return (
        f"{path.name}: {len(counts_P):,} prompts with {rollouts} rollouts, {len(tokens):,} in all"
        f"{right}; tokens: median {median:,.0f}, p99 {high:,.0f}, longest {longest:,.0f}"
    )


def describe_tail(
    tail: StepTail, variance: tuple[float, float, float], between: tuple[float, float, float], arguments: Namespace
) -> list[str]:
    """Where the tail lies, in lines; shares with the ends of their intervals."""
    share, low, high = (round(100 * part) for part in between)
    of_variance = "{} % [{}, {}]".format(*(round(100 * part) for part in variance))
    return [
        f"The longest rollout of a step has {tail.longest:,.0f} tokens, {tail.longest / max(tail.mean, 1):.1f} times the "
        f"mean. Of what it has beyond the mean, {share} % [{low}, {high}] lies between prompts, {100 - share} % "
        f"[{100 - high}, {100 - low}] within. Of the variance of log lengths, {of_variance} lies between.",
        f"{tail.stragglers:.0%} of the groups of {arguments.n_samples_per_prompt} have a straggler, "
        f"{arguments.straggler_ratio:g} times the group's median or more.",
    ]


def describe_step(base: pd.Series, arguments: Namespace) -> str:
    """Where the seconds of a step as it is go."""
    waits = base["idle_fraction"] * base["generation_seconds"] / base["seconds"]
    others = ", ".join(f"{part} {base[f'{part}_seconds']:.3g}" for part in list(PARTS)[1:])
    return (
        f"On {arguments.gpus} GPU{'s' * (arguments.gpus > 1)} ({arguments.engine.name}) a step of {arguments.batch_size} prompts x "
        f"{arguments.n_samples_per_prompt} takes {base['seconds']:.3g} s: generation {base['generation_seconds']:.3g}, "
        f"{others}. Its rollouts wait for the last one for {waits:.0%} of it on average."
    )


def table_of(rows: pd.DataFrame) -> Table:
    """A line a switch, the best first, the run as it is on top."""
    table = Table(box=None, pad_edge=False)
    for title in ("switch", "s a step", "stragglers", "effective samples a second", "gain in these"):
        table.add_column(title, justify="left" if title == "switch" else "right", no_wrap=True)
    for place, row in in_order(rows).iterrows():
        if np.isnan(row["gain"]):
            table.add_row(row["switch"], "", "", "", "cannot fill its steps")
            continue
        cells = [
            f"{row['seconds']:.3g}",
            f"{row['straggler_rate']:.2f}",
            f"{row['effective_samples_an_hour'] / 3600:.3g}",
        ]
        table.add_row(row["switch"], *cells, interval(row) if place else "")
    return table


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """The run as it is, then the switches by their gain."""
    return pd.concat([rows.iloc[:1], rows.iloc[1:].sort_values("gain", ascending=False, kind="stable")])


def print_screen(lines: list[str], rows: pd.DataFrame, advice: Verdict, calibration: Calibration) -> None:
    """Paragraphs on the trace, the table, the advice, and what it rests on."""
    console = Console(width=WIDTH, highlight=False)
    for line in lines:
        console.print(textwrap.fill(line, WIDTH), markup=False)
    console.print()
    console.print(table_of(rows))
    console.print()
    console.print(
        textwrap.fill(f"Advice: {advice.switch or 'none'}. {advice.reason}.", WIDTH), markup=False, style="bold"
    )
    if advice.flags:
        console.print(f"  {advice.flags}", markup=False, soft_wrap=True)
    console.print(textwrap.fill(f"The simulator is {calibration.words}.", WIDTH), markup=False)


def plot(rows: pd.DataFrame, trace: Trace, advice: Verdict, floor: float, path: Path) -> None:
    """Gains with their intervals, where the seconds go under each switch, and lengths of rollouts and prompts."""
    rows = in_order(rows).dropna(subset="gain")
    height = 1.8 + 0.32 * max(len(rows), 7)
    figure, (gained, spent, lengths) = plt.subplots(
        1, 3, figsize=(15, height), layout="constrained", width_ratios=[5, 4, 4]
    )
    colors = ["C2" if name == advice.switch else "C0" for name in rows["switch"]]
    spread = 100 * np.array([rows["gain"] - rows["low"], rows["high"] - rows["gain"]])
    bar = {"color": colors, "ecolor": "0.3", "capsize": 3}
    gained.barh(rows["switch"], 100 * rows["gain"], xerr=spread.clip(min=0), **bar)
    gained.axvspan(-100 * floor, 100 * floor, color="0.9", zorder=0, label="too little to advise")
    gained.axvline(0, color="black", linewidth=1)
    gained.set_xlabel("gain in effective samples a second (%), 95 % interval")

    left = np.zeros(len(rows))
    for part, color in PARTS.items():
        seconds = rows[f"{part}_seconds"].to_numpy()
        spent.barh(rows["switch"], seconds, left=left, color=color, label=part)
        left += seconds
    spent.set_xlabel("s a step")
    spent.tick_params(labelleft=False)

    curves = {"rollouts": np.concatenate(trace.tokens_by_prompt), "means of prompts": trace.mean_tokens}
    for label, values in curves.items():
        lengths.plot(np.sort(values), 1 - np.arange(len(values)) / len(values), drawstyle="steps-post", label=label)
    lengths.loglog()
    lengths.set_xlabel("tokens")
    lengths.set_ylabel("share that is as long or longer")
    for axis in (gained, spent):
        axis.invert_yaxis()
    for axis in (gained, spent, lengths):
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize="small")
        axis.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    save(figure, path)

"""The report's pictures, as SVG whose text stays text."""

import io
import itertools
import re
from collections.abc import Callable

import matplotlib
import numpy as np
import pandas as pd
from lib.plots import PARTS as SECONDS
from lib.plots import plt
from lib.run_report.content import Figure
from lib.run_report.learning import are_evaluated, curve
from lib.run_report.measured import OF_A_STEP, PARTS, Arm, Measured

COLOURS = ["0.35", "C3", "C0", "C2", "C1", "C4", "C5", "C6", "C8", "C9"]
PART_COLOURS = dict(zip(PARTS, ["C0", "C2", "C1", "0.5"]))
LONGEST_NAME = 30
MOST_POINTS = 2000  # of a line
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def svg(name: str, caption: str, figure: plt.Figure) -> Figure:
    """The figure without a header, metadata or names of other places, so that a page can hold it."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=NO_METADATA)
    plt.close(figure)
    found = text.getvalue()
    found = re.sub(r'<g id="[^"]*"', "<g", found)  # nothing refers to them, and another figure has the same
    found = re.sub(r'\sxmlns(?::\w+)?="[^"]*"', "", found[found.index("<svg") :]).replace("xlink:href", "href")
    return Figure(name, caption, found.strip())


def figures(arms: list[Arm]) -> list[Figure]:
    """Those for which there is something to draw."""
    drawn = [rewards(arms), lengths(arms), control(arms)]
    if len(arms) == 1 and all(OF_A_STEP + name in arms[0].runs[0].steps for name in SECONDS):
        drawn.append(stacked(arms[0].runs[0]))
    if any(run.later["seconds"].notna().any() for arm in arms for run in arm.runs):
        drawn = [parts(arms), over_steps(arms), *drawn]
    return [figure for figure in drawn if figure]


def name_of(arm: Arm) -> str:
    """As a picture has room for."""
    return arm.name if len(arm.name) <= LONGEST_NAME else f"{arm.name[:LONGEST_NAME]}…"


def thinned(column: np.ndarray) -> np.ndarray:
    """Numbers of the points that are drawn."""
    return np.unique(np.linspace(0, len(column) - 1, min(len(column), MOST_POINTS)).astype(int))


def _lines(arms: list[Arm], draw: Callable[[Measured, Callable[..., None]], None]) -> None:
    """Have `draw` draw each run, by a function that takes an axis, x and y, and knows the colour and name of the arm."""
    for arm, colour in zip(arms, itertools.cycle(COLOURS)):
        for number, run in enumerate(arm.runs):

            def line(axis, x, y, *style, label=None if number else name_of(arm), colour=colour, **more):
                at = thinned(x)
                axis.plot(np.asarray(x)[at], np.asarray(y)[at], *style, color=colour, label=label, **more)

            draw(run, line)


def _axes(panels: int, height: float = 3.4):
    with matplotlib.rc_context({"text.parse_math": False}):  # the name of an arm is no formula
        figure, axes = plt.subplots(1, panels, figsize=(5.2 * panels, height), layout="constrained", squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    return figure, axes[0]


def _label(axis, x: str, y: str, legend: bool = False) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if x == "step":
        axis.xaxis.get_major_locator().set_params(integer=True)
    for text in axis.legend(fontsize="small").get_texts() if legend else []:
        text.set_parse_math(False)


def parts(arms: list[Arm]) -> Figure:
    """Mean seconds of each part of a step."""
    figure, (axis,) = _axes(1, height=1.2 + 0.45 * len(arms))
    places, left = np.arange(len(arms)), np.zeros(len(arms))
    for part, colour in PART_COLOURS.items():
        widths = np.nan_to_num([np.mean([run.later[part].mean() for run in arm.runs]) for arm in arms])
        axis.barh(places, widths, left=left, color=colour, label=part)
        left += widths
    axis.set_yticks(places, [name_of(arm) for arm in arms])
    for text in axis.get_yticklabels():
        text.set_parse_math(False)
    axis.invert_yaxis()
    axis.set_xlabel("mean seconds a step, behind the warm-up")
    figure.legend(loc="outside upper center", ncols=len(PARTS), fontsize="small", frameon=False)
    return svg("parts", "Where the seconds of a step go", figure)


def over_steps(arms: list[Arm]) -> Figure:
    """Seconds of each step, and of all so far."""
    figure, (each, total) = _axes(2)
    longest = max(run.steps["spent"].iloc[-1] for arm in arms for run in arm.runs)
    unit, seconds = ("hours", 3600) if longest > 7200 else ("minutes", 60)

    def draw(run, line):
        line(each, run.later.index, run.later["seconds"], ".", ms=4, alpha=0.6)
        line(total, run.steps.index, run.steps["spent"] / seconds)

    _lines(arms, draw)
    each.set_ylim(bottom=0)
    _label(each, "step", "seconds", legend=True)
    _label(total, "step", f"training {unit} so far")
    return svg("steps", "Seconds of every step, without those that warm up, and all of training so far", figure)


def rewards(arms: list[Arm]) -> Figure | None:
    """Reward over steps, training seconds and rollouts: a line a run."""
    evaluated, runs = are_evaluated(arms), [run for arm in arms for run in arm.runs]
    titles = {"step": "step", "spent": "training seconds", "rollouts": "rollouts made"}
    panels = [name for name in titles if any(len(curve(run, name, evaluated).at) > 1 for run in runs)]
    if not panels:
        return None
    figure, axes = _axes(len(panels))

    def draw(run, line):
        for axis, name in zip(axes, panels):
            one = curve(run, name, evaluated)
            line(axis, one.at, one.reward, alpha=0.8, marker="o" if evaluated else None, ms=3)

    _lines(arms, draw)
    for axis, name in zip(axes, panels):
        _label(axis, titles[name], "held-out reward" if evaluated else "training reward", legend=axis is axes[0])
    training = "Training rewards, means of 10 steps, of the groups that were kept"
    return svg("rewards", f"{'Rewards of evaluations' if evaluated else training}: a line a run", figure)


def lengths(arms: list[Arm]) -> Figure | None:
    """Mean trained response over steps."""
    if not any(run.steps["length"].notna().any() for arm in arms for run in arm.runs):
        return None
    figure, (axis,) = _axes(1)
    _lines(arms, lambda run, line: line(axis, run.steps.index, run.steps["length"].rolling(5, 1).mean()))
    axis.set_ylim(bottom=0)
    _label(axis, "step", "tokens of a trained response", legend=True)
    return svg("lengths", "Mean trained response, means of 5 steps", figure)


def control(arms: list[Arm]) -> Figure | None:
    """Group size, straggler rate so far and virtual queue over steps, of the arms that log them."""
    panels = {"group_size": "group size", "straggler_rate": "straggler rate so far", "virtual_queue": "virtual queue"}
    controlled = {arm.name for arm in arms if any(run.steps["virtual_queue"].notna().any() for run in arm.runs)}
    if not controlled:
        return None
    figure, axes = _axes(len(panels))

    def draw(run, line):
        for axis, name in zip(axes, panels):
            values = run.steps[name].expanding().mean() if name == "straggler_rate" else run.steps[name]
            line(axis, run.steps.index, values, drawstyle="steps-mid")
        limit = run.kept.get("flags", {}).get("rollout.sagc.max_straggler_rate")
        if isinstance(limit, float):
            axes[1].axhline(limit, color="black", linestyle="--", linewidth=1)

    _lines([arm if arm.name in controlled else arm._replace(runs=[]) for arm in arms], draw)
    for axis, name in zip(axes, panels.values()):
        _label(axis, "step", name)
    return svg("control", "What group control did; the dashed line is its limit", figure)


def stacked(run: Measured) -> Figure:
    """The parts of every step, of which no second is in two."""
    figure, (axis,) = _axes(1)
    seconds = run.steps[[OF_A_STEP + name for name in SECONDS]]
    totals, index = seconds.sum(axis=1), run.steps.index
    # An area, not a bar a step: a run may have 100,000.
    edges = [*(index - 0.5), index[-1] + 0.5]
    heights = pd.concat([seconds, seconds.tail(1)]).T.to_numpy()
    labels = [name.replace("_", " ") for name in SECONDS]
    axis.stackplot(edges, heights, step="post", colors=list(SECONDS.values()), labels=labels, linewidth=0)
    top = 1.1 * totals.iloc[1:].max()
    if totals.iloc[0] > top:  # vLLM and DeepSpeed warm up in it
        axis.set_ylim(0, top)
        note = f"step {index[0]}: {totals.iloc[0]:.0f} s"
        axis.annotate(note, (0.02, 0.94), xycoords="axes fraction", va="top", fontsize="small")
    axis.set_xlim(index[0] - 0.5, index[-1] + 0.5)
    _label(axis, "step", "seconds")
    figure.legend(loc="outside upper center", ncols=4, fontsize="small", frameon=False)
    return svg("seconds", "Where the seconds of every step went", figure)

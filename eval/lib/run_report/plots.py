"""The report's pictures, as SVG whose text stays text."""

import io
import itertools
import re

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


def colours(arms: list[Arm]) -> dict[str, str]:
    return {arm.name: colour for arm, colour in zip(arms, itertools.cycle(COLOURS))}


def thinned(column: np.ndarray) -> np.ndarray:
    """Numbers of the points that are drawn."""
    return np.unique(np.linspace(0, len(column) - 1, min(len(column), MOST_POINTS)).astype(int))


def _axes(panels: int, height: float = 3.4):
    with matplotlib.rc_context({"text.parse_math": False}):  # the name of an arm is no formula
        figure, axes = plt.subplots(1, panels, figsize=(5.2 * panels, height), layout="constrained", squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    return figure, axes[0]


def _label(axis, x: str, y: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if x == "step":
        axis.xaxis.get_major_locator().set_params(integer=True)


def _legend(axis) -> None:
    for text in axis.legend(fontsize="small").get_texts():
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
    for arm in arms:
        for number, run in enumerate(arm.runs):
            later, label = run.later, name_of(arm) if not number else None
            at = thinned(later.index)
            each.plot(
                later.index[at],
                later["seconds"].iloc[at],
                ".",
                ms=4,
                alpha=0.6,
                color=colours(arms)[arm.name],
                label=label,
            )
            at = thinned(run.steps.index)
            total.plot(run.steps.index[at], run.steps["spent"].iloc[at] / seconds, color=colours(arms)[arm.name])
    each.set_ylim(bottom=0)
    _label(each, "step", "seconds")
    _label(total, "step", f"training {unit} so far")
    _legend(each)
    return svg("steps", "Seconds of every step, without those that warm up, and all of training so far", figure)


def rewards(arms: list[Arm]) -> Figure | None:
    """Reward over steps, training seconds and rollouts: a line a run."""
    evaluated = are_evaluated(arms)
    titles = {"step": "step", "spent": "training seconds", "rollouts": "rollouts made"}
    panels = [
        axis for axis in titles if any(len(curve(run, axis, evaluated).at) > 1 for arm in arms for run in arm.runs)
    ]
    if not panels:
        return None
    figure, axes = _axes(len(panels))
    for axis, name in zip(axes, panels):
        for arm in arms:
            for number, run in enumerate(arm.runs):
                one = curve(run, name, evaluated)
                at = thinned(one.at) if len(one.at) else []
                style = dict(color=colours(arms)[arm.name], alpha=0.8, marker="o" if evaluated else None, ms=3)
                axis.plot(one.at[at], one.reward[at], label=name_of(arm) if not number else None, **style)
        _label(axis, titles[name], "held-out reward" if evaluated else "training reward")
    _legend(axes[0])
    what = (
        "Rewards of evaluations" if evaluated else "Training rewards, means of 10 steps, of the groups that were kept"
    )
    return svg("rewards", f"{what}: a line a run", figure)


def lengths(arms: list[Arm]) -> Figure | None:
    """Mean trained response over steps."""
    if not any(run.steps["length"].notna().any() for arm in arms for run in arm.runs):
        return None
    figure, (axis,) = _axes(1)
    for arm in arms:
        for number, run in enumerate(arm.runs):
            at = thinned(run.steps.index)
            line = run.steps["length"].rolling(5, 1).mean().iloc[at]
            axis.plot(
                run.steps.index[at], line, color=colours(arms)[arm.name], label=name_of(arm) if not number else None
            )
    axis.set_ylim(bottom=0)
    _label(axis, "step", "tokens of a trained response")
    _legend(axis)
    return svg("lengths", "Mean trained response, means of 5 steps", figure)


def control(arms: list[Arm]) -> Figure | None:
    """Group size, straggler rate so far and virtual queue over steps, of the arms that log them."""
    panels = {"group_size": "group size", "straggler_rate": "straggler rate so far", "virtual_queue": "virtual queue"}
    controlled = [arm for arm in arms if any(run.steps["virtual_queue"].notna().any() for run in arm.runs)]
    if not controlled:
        return None
    figure, axes = _axes(len(panels))
    for arm in controlled:
        for run in arm.runs:
            at = thinned(run.steps.index)
            for axis, name in zip(axes, panels):
                line = run.steps[name].expanding().mean() if name == "straggler_rate" else run.steps[name]
                axis.plot(run.steps.index[at], line.iloc[at], color=colours(arms)[arm.name], drawstyle="steps-mid")
            limit = run.kept.get("flags", {}).get("rollout.sagc.max_straggler_rate")
            if isinstance(limit, float):
                axes[1].axhline(limit, color="black", linestyle="--", linewidth=1)
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

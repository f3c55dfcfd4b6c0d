"""The report of arms: REPORT.md with its figures, one page, and the figures of both as JSON."""

import json
from pathlib import Path

import numpy as np
from lib.paths import write_whole
from lib.run_report import differences, health, heldout, learning, plots, render, seconds, traces, waiting
from lib.run_report.content import Section, Table
from lib.run_report.measured import Arm
from lib.run_report.statistics import ends_of


def write_report(
    arms: list[Arm],
    output: Path,
    settings: dict | None = None,
    trace_files: dict | None = None,
    remarks: list[str] | None = None,
    seconds_of_training: float | None = None,
) -> str:
    """Write REPORT.md, report.html, comparison.json and the figures into a folder; the text of REPORT.md.

    Args:
        arms: the first is the base, or the best fixed size of those that a comparison on two cores has.
        output: is made.
        settings: of a comparison on two cores: its `target` and `seconds`.
        trace_files: name of an arm -> its traces.
        remarks: sentences on how the runs were made.
        seconds_of_training: after which rewards are compared, in the place of the end that all runs reach.

    Raises:
        ValueError: a trace is none.
    """
    verdicts, sections, rows = [], [], []
    for algorithm in dict.fromkeys(arm.algorithm for arm in arms):
        mine = [arm for arm in arms if arm.algorithm == algorithm]
        several = len({arm.algorithm for arm in arms}) > 1
        prefix = f"{algorithm}-" if several else ""
        found = _of_algorithm(mine, settings, trace_files or {}, prefix, seconds_of_training)
        verdicts += [f"{algorithm.upper()}: {line}" if several else line for line in found[0]]
        sections += [
            section._replace(title=f"{algorithm.upper()}: {section.title}") if several else section
            for section in found[1]
        ]
        rows += found[2]
    names = [*dict.fromkeys(arm.name for arm in arms)]
    title = " against ".join(names) if len(names) < 4 else f"{len(names)} arms"
    sections[0].blocks[:0] = remarks or []
    title, verdicts = render.shown(title), [render.without_secrets(line) for line in verdicts]
    sections = [render.redacted(section) for section in sections]
    output.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for block in section.blocks:
            if isinstance(block, plots.Figure):
                standalone = block.svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
                write_whole(output / f"{block.name}.svg", standalone + "\n")
    text = render.as_markdown(title, verdicts, sections)
    write_whole(output / "REPORT.md", text)
    write_whole(output / "report.html", render.as_page(title, verdicts, sections))
    content = {"settings": settings or {}, "verdicts": verdicts, "policies": [plain(row) for row in rows]}
    write_whole(output / "comparison.json", json.dumps(content, indent=2) + "\n")
    return text


def _of_algorithm(
    arms: list[Arm], settings: dict | None, trace_files: dict, prefix: str, seconds_of_training: float | None
) -> tuple[list[str], list[Section], list[dict]]:
    """Verdicts, sections and rows of JSON of the arms of one algorithm."""
    rows, base, verdicts = [], arms[0], []
    sections = [differences.section(arms)]
    if settings and heldout.has_problems(arms):
        rows = heldout.summaries(arms, settings)
        base = next(arm for arm in arms if arm.name == rows[0]["best_fixed"])
        verdicts += heldout.verdict(rows, settings["target"])
    verdicts = seconds.verdicts(base, [arm for arm in arms if arm is not base]) + verdicts + waiting.lines(arms)
    by_name = {figure.name: figure._replace(name=prefix + figure.name) for figure in plots.figures(arms)}
    of_seconds, learned, lengths = (
        seconds.section(arms, base),
        learning.section(arms, seconds_of_training),
        health.section(arms),
    )
    of_seconds.blocks[1:1] = [by_name[name] for name in ("parts", "seconds", "steps") if name in by_name]
    learned.blocks[1:1] = [by_name["rewards"]] if "rewards" in by_name else []
    lengths.blocks[1:1] = [by_name[name] for name in ("lengths", "control") if name in by_name]
    sections += [of_seconds, learned]
    if rows:
        sections.append(heldout.section(rows, arms, settings or {}))
    own_traces = {arm.name: trace_files[arm.name] for arm in arms if arm.name in trace_files}
    if not settings or own_traces:  # a comparison on two cores has the lengths of all rollouts
        sections.append(traces.section(own_traces, [arm.name for arm in arms]))
    sections.append(lengths)
    sections.append(Section("Sources", _sources(arms)))
    rows = rows or [_figures(arm, base) for arm in arms]
    return verdicts, sections, rows


def _sources(arms: list[Arm]) -> list:
    notes = [
        [arm.name, str(run.seed), Path(run.source).name, "; ".join(run.notes) or "–"]
        for arm in arms
        for run in arm.runs
    ]
    return [Table(["arm", "run", "source", "notes"], notes, "lrll")]


def _figures(arm: Arm, base: Arm) -> dict:
    """The figures of an arm for JSON."""
    return {
        "policy": arm.name,
        "runs": len(arm.runs),
        "steps": float(np.mean([len(run.later) for run in arm.runs])),
        "step_seconds": float(np.mean([run.later["seconds"].mean() for run in arm.runs])),
        "step_speedup": None if arm is base else seconds.times_faster(base, arm),
        **{f"s_{part}": float(np.mean([run.later[part].mean() for run in arm.runs])) for part in seconds.PARTS},
    }


def plain(value: object) -> object:
    """JSON of a cell: bootstrap draws become the data's value and the interval, None where a number is not finite."""
    if isinstance(value, dict):
        return {str(name): plain(number) for name, number in value.items()}
    if isinstance(value, np.ndarray):
        return dict(zip(("value", "low", "high"), map(plain, (value[0], *ends_of(value)))))
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return render.shown(value) if isinstance(value, str) else value

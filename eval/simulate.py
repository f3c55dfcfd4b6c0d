"""Seconds a step, idle fraction and straggler rate of group control, tail batching and fixed sizes, without the hardware.

A discrete-event simulation of continuous-batching engines (engine_model.py) drives the controller, the dynamic sampler
and the tail batcher of training, on a trace of rollout lengths or on a distribution:

    python eval/simulate.py --trace FILE --policies fixed:8,fixed:16,sagc,sagc+tail --json OUT

A policy is `fixed:N` or `sagc`; `+tail` behind it is tail batching, `+lengths` length-aware dispatch, and `@samples` or
`@prompts` what a step keeps at every group size (else --hold). Same flags, same seed: same JSON. How a trace is drawn from: rollout_lengths.py.
"""

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from engine_model import CostModel
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rollout_lengths import LogNormal, Trace
from simulated_training import SimulatedTraining

from openrlhf_sagc.argument_checks import FILTER, PREFIX, TAIL
from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator, NullFormatter  # noqa: E402

ROOT = Path(__file__).parents[1]
CONTROL = ("group_sizes", "straggler_ratio", "max_straggler_rate", "tradeoff", "discount", "hold", "signal")
SAMPLING = ("max_gen_batches",)
BATCHING = ("prompt_ratio", "response_ratio")
POLICY = re.compile(r"(sagc|fixed:\d+)((?:\+(?:tail|lengths))*)(?:@(samples|prompts))?")
PANELS = {
    "seconds": "s a step",
    "idle_fraction": "idle fraction",
    "straggler_rate": "straggler rate",
    "prompts_an_hour": "prompts an hour",
    "group_size": "mean group size",
}
LOGARITHMIC = ("seconds", "prompts_an_hour", "group_size")
# Line and filling of markers with (+tail, +lengths).
STYLES = {
    (False, False): ("-", "full"),
    (True, False): (":", "left"),
    (False, True): ("--", "none"),
    (True, True): ("-.", "right"),
}


class Policy(NamedTuple):
    name: str  # as the command has it, with its hold
    sizes: tuple[int, ...]
    initial: int
    hold: str
    tail: bool
    lengths: bool


def parse_policy(word: str, arguments: argparse.Namespace) -> Policy:
    """As the module's docstring has it.

    Raises:
        ValueError: it is none, or its sizes do not fit the step; the message names the flag.
    """
    found = POLICY.fullmatch(word)
    if not found:
        raise ValueError(
            f"--policies {word} must be fixed:N or sagc, with +tail, +lengths, @samples or @prompts behind it or nothing"
        )
    kind, additions, hold = found[1], found[2].split("+"), found[3] or arguments.hold
    _, colon, size = kind.partition(":")
    sizes = (int(size),) if colon else tuple(arguments.group_sizes)
    initial = int(size) if colon else arguments.n_samples_per_prompt
    if initial not in sizes:
        raise ValueError(
            f"--group_sizes {' '.join(map(str, sizes))} do not hold --n_samples_per_prompt {initial}, the first step's"
        )
    samples = arguments.batch_size * arguments.n_samples_per_prompt
    wrong = [size for size in sizes if size < 2 or hold == "samples" and samples % size]
    if wrong:
        raise ValueError(
            f"--policies {word}: a group size of {wrong[0]} is below 2 or does not divide the {samples} samples of a step "
            f"(--batch_size {arguments.batch_size} x --n_samples_per_prompt {arguments.n_samples_per_prompt})"
        )
    return Policy(f"{kind}{found[2]}@{hold}", sizes, initial, hold, "tail" in additions, "lengths" in additions)


def train(policy: Policy, gpus: int, source: Trace | LogNormal, costs: CostModel, arguments) -> SimulatedTraining:
    """The simulated run of one policy.

    Raises:
        ValueError: a flag of the controller or the sampler is out of its range; the message begins with its name.
    """
    filtering = {} if arguments.dynamic_sampling else {"tolerance": None}
    try:
        sampler = DynamicSampler(max_gen_batches=arguments.max_gen_batches, **filtering)
        controller = StragglerAwareGroupController(
            policy.sizes,
            arguments.straggler_ratio,
            arguments.max_straggler_rate,
            arguments.tradeoff,
            arguments.discount,
            initial_group_size=policy.initial,
        )
        batcher = TailBatcher(prompt_ratio=arguments.prompt_ratio, response_ratio=arguments.response_ratio)
    except ValueError as error:
        raise ValueError(f"--{error}") from None
    planner = StepPlanner(
        controller,
        sampler,
        batcher if policy.tail else NoTailBatching(),
        LengthPredictor() if policy.lengths else None,
        hold=policy.hold,
        samples=arguments.batch_size * arguments.n_samples_per_prompt,
        prompts=arguments.batch_size,
        signal=arguments.signal,
        num_engines=gpus // costs.gpus_per_engine,
    )
    return SimulatedTraining(
        planner, source, costs, gpus=gpus, prompt_tokens=arguments.prompt_tokens, seed=arguments.seed
    )


def one_step(run: SimulatedTraining, where: str, arguments: argparse.Namespace) -> dict[str, float]:
    """`run.step()`, with its errors in terms of the flags."""
    try:
        return run.step()
    except RuntimeError as error:
        cap = f"--max_gen_batches {arguments.max_gen_batches} reached, {where}"
        raise ValueError(f"{cap}: {error}: use prompts that are solved sometimes") from None
    except ValueError as error:
        raise ValueError(f"--engine {arguments.engine}: {error}") from None


def summary(policy: Policy, gpus: int, steps: pd.DataFrame) -> dict:
    """One row of the table: means over the steps, but for counts of the run."""
    hours = steps["seconds"].sum() / 3600
    totals = {"steps": len(steps), "rollouts": int(steps["rollouts"].sum())}
    rates = {f"{unit}_an_hour": steps[unit].sum() / hours for unit in ("prompts", "samples")}
    means = steps.drop(columns="rollouts").mean().to_dict()
    return {"gpus": gpus, "policy": policy.name, **totals, **means, **rates}


def simulate(policies: list[Policy], source: Trace | LogNormal, costs: CostModel, arguments) -> pd.DataFrame:
    """A row for each number of GPUs and policy."""
    runs = [(policy, gpus) for gpus in arguments.gpus for policy in policies]
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(runs) * arguments.steps)
        for policy, gpus in runs:
            progress.update(task, description=f"{policy.name}, {gpus} GPUs")
            run = train(policy, gpus, source, costs, arguments)
            steps = []
            for number in range(1, arguments.steps + 1):
                steps.append(one_step(run, f"{policy.name}, step {number}", arguments))
                progress.advance(task)
            rows.append(summary(policy, gpus, pd.DataFrame(steps)))
    return pd.DataFrame(rows)


def print_table(rows: pd.DataFrame) -> None:
    columns = {
        "gpus": "GPUs",
        "policy": "policy",
        "group_size": "mean group size",
        "seconds": "s a step",
        "generation_seconds": "generation s",
        "idle_fraction": "idle fraction",
        "long_round": "long rounds",
        "straggler_rate": "straggler rate",
        "prompts_an_hour": "prompts an hour",
        "samples_an_hour": "samples an hour",
        "preemptions": "preemptions",
    }
    table = Table(title=f"{rows['steps'].iloc[0]} simulated steps, means")
    for label in columns.values():
        name = label == "policy"
        table.add_column(label, justify="left" if name else "right", no_wrap=name)
    ends = rows["gpus"].ne(rows["gpus"].shift(-1))
    for row, end in zip(rows[list(columns)].itertuples(index=False), ends):
        cells = (f"{cell:,.0f}" if cell >= 1000 else f"{cell:.3g}" for cell in row if not isinstance(cell, str))
        table.add_row(str(row.gpus), row.policy, *list(cells)[1:], end_section=end)
    Console(width=150).print(table)


def plot(rows: pd.DataFrame, limit: float, path: Path) -> None:
    """A row a hold, a panel a figure: against the number of GPUs, or the mean group size where there is one number."""
    x, label_of_x = ("gpus", "GPUs") if rows["gpus"].nunique() > 1 else ("group_size", "mean group size")
    names = rows["policy"].str.split("@", expand=True).set_axis(["kind", "hold"], axis=1)
    holds, kinds = names["hold"].unique(), names["kind"].unique()
    panels = {name: label for name, label in PANELS.items() if name != x}
    size = (3 * len(panels), 0.8 + 2.9 * len(holds))
    figure, axes = plt.subplots(len(holds), len(panels), figsize=size, squeeze=False, layout="constrained")
    shades = dict(zip(kinds, plt.cm.viridis(np.linspace(0, 0.85, len(kinds)))))
    for line, hold in zip(axes, holds):
        for axis, (name, label) in zip(line, panels.items()):
            for kind, run in rows[names["hold"] == hold].groupby(names["kind"], sort=False):
                color, marker = ("C3", "D") if kind.startswith("sagc") else (shades[kind], "o")
                style, fill = STYLES["+tail" in kind, "+lengths" in kind]
                look = {"marker": marker, "markersize": 5, "fillstyle": fill, "color": color}
                axis.plot(run[x], run[name], style, label=kind, **look)
            if name == "straggler_rate":
                axis.axhline(limit, color="black", linestyle="--", linewidth=1)
            axis.set_xscale("log", base=2)
            if x == "gpus":
                axis.set_xticks(rows[x].unique())
            axis.xaxis.set_major_formatter("{x:.0f}")
            if name in LOGARITHMIC:
                axis.set_yscale("log", base=2 if name == "group_size" else 10)
                subs = (1,) if name == "group_size" else (1, 2, 5)
                axis.yaxis.set_major_locator(LogLocator(2 if name == "group_size" else 10, subs))
                axis.yaxis.set_major_formatter("{x:,.0f}")
                axis.yaxis.set_minor_formatter(NullFormatter())
            axis.tick_params(labelsize="small")
            axis.set_title(f"constant {hold}: {label}", fontsize="small")
            axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel(label_of_x)
    handles = {label: handle for line in axes for handle, label in zip(*line[0].get_legend_handles_labels())}
    figure.legend(handles.values(), handles, loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def add_package_flags(parser: argparse.ArgumentParser) -> None:
    """Training's own flags of the scheduler, without their prefixes, with their defaults."""
    training = argparse.ArgumentParser()
    add_arguments(training)
    taken = {PREFIX: CONTROL, FILTER: SAMPLING, TAIL: BATCHING}
    names = {prefix[2:] + name: name for prefix, of_prefix in taken.items() for name in of_prefix}
    for action in training._actions:
        if action.dest in names:
            options = {"type": action.type, "nargs": action.nargs, "choices": action.choices}
            parser.add_argument(f"--{names[action.dest]}", default=action.default, help=action.help, **options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lengths = parser.add_mutually_exclusive_group(required=True)
    lengths.add_argument("--trace", type=Path, help="CSV: prompt_id,sample_id,tokens[,correct][,truncated]")
    lengths.add_argument("--lengths", help="lognormal:median=..,between=..,within=..,cap=.. (log-sd; tokens)")
    parser.add_argument("--policies", default="fixed:8,sagc", help="comma-separated, as above")
    parser.add_argument("--engine", type=Path, default=ROOT / "eval/engines/h100-7b.json", help="JSON of eval/engines")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8], help="numbers of GPUs, a table section each")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=128, help="prompts of a step at --n_samples_per_prompt")
    parser.add_argument("--n_samples_per_prompt", type=int, default=8, help="the first group size of sagc")
    parser.add_argument("--prompt_tokens", type=int, default=256, help="of every prompt")
    parser.add_argument("--dynamic_sampling", action="store_true", help="keep groups whose `correct` differs (DAPO)")
    add_package_flags(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the settings and rows go")
    parser.add_argument("--csv", type=Path, help="where the rows go")
    parser.add_argument("--plot", type=Path, help="where the plot goes, a PNG")
    arguments = parser.parse_args()
    for name, lowest in (
        ("steps", 1),
        ("batch_size", 1),
        ("n_samples_per_prompt", 1),
        ("prompt_tokens", 0),
        ("seed", 0),
    ):
        if getattr(arguments, name) < lowest:
            raise ValueError(f"--{name} must be at least {lowest}, got {getattr(arguments, name)}")
    for name in ("json", "csv", "plot"):
        path = getattr(arguments, name)
        if path and not path.parent.is_dir():
            raise ValueError(f"--{name} {path}: there is no folder {path.parent}")
        if path and path.is_dir():
            raise ValueError(f"--{name} {path}: it is a folder: give a file")
    return arguments


def run(arguments: argparse.Namespace) -> tuple[pd.DataFrame, CostModel]:
    """The table of the command.

    Raises:
        ValueError: a flag or a file does not fit; one line.
    """
    costs = CostModel.load(arguments.engine)
    wrong = [gpus for gpus in arguments.gpus if gpus < 1 or gpus % costs.gpus_per_engine]
    if wrong:
        raise ValueError(f"--gpus {wrong[0]} is no multiple of the {costs.gpus_per_engine} GPUs of an engine")
    policies = [parse_policy(word, arguments) for word in arguments.policies.split(",")]
    source = Trace(arguments.trace) if arguments.trace else LogNormal.parse(arguments.lengths)
    if arguments.dynamic_sampling and not source.has_correct:
        raise ValueError("--dynamic_sampling needs a --trace with the column correct: drop one of them")
    return simulate(policies, source, costs, arguments), costs


def main() -> None:
    began = time.perf_counter()
    try:
        arguments = parse_arguments()
        rows, costs = run(arguments)
    except ValueError as error:
        sys.exit(f"eval/simulate.py: {error}")
    seconds = time.perf_counter() - began
    print_table(rows)
    rollouts = rows["rollouts"].sum()
    print(f"{rollouts:,} rollouts simulated in {seconds:.1f} s, {rollouts / seconds:,.0f} a second")
    if arguments.json:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
        settings = {name: value for name, value in settings.items() if name not in ("json", "csv", "plot")}
        content = {"settings": settings, "engine": vars(costs), "rows": rows.to_dict("records")}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")
    if arguments.csv:
        rows.to_csv(arguments.csv, index=False, float_format="%.6g")
    if arguments.plot:
        plot(rows, arguments.max_straggler_rate, arguments.plot)


if __name__ == "__main__":
    main()

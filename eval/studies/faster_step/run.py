"""Simulated seconds of a synchronous step, with each part of a faster step and without it, and with tail batching.

Actors and engines have GPUs of their own, and all runs have as many in total. Parts are added one by one, and each is left
out of all: the flags `old_log_probs`, `micro_batches` and `stream` of training, `lengths` for placed rollouts and
`tail` for tail batching. Runs `in turns` have actors and engines on all GPUs, where nothing is streamed. Samples are padded,
or packed, which leaves nothing to micro-batches by length and cannot be streamed. A run with a forward pass cannot be either.

It writes runs.csv, a row a run, table.md and faster_step.png.
"""

import argparse
import itertools
from pathlib import Path

import pandas as pd
from lib.paths import ENGINES, study_flags
from lib.plots import plt, save
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import started
from lib.simulation.work import Work
from lib.tables import markdown
from rich.progress import track

PARTS = ("old_log_probs", "micro_batches", "stream", "lengths", "tail")
NOTHING, ALL, IN_TURNS = "nothing", "all", "in turns: "
# Arms and the parts that they have.
ARMS: dict[str, tuple[str, ...]] = {
    NOTHING: (),
    "old_log_probs": PARTS[:1],
    "… + micro_batches": PARTS[:2],
    "… + stream": PARTS[:3],
    "… + lengths": PARTS[:4],
    ALL: PARTS,
    **{f"all without {part}": tuple(other for other in PARTS if other != part) for part in PARTS[:-1]},
    "tail alone": ("tail",),
    f"{IN_TURNS}nothing": (),
    f"{IN_TURNS}all but stream": tuple(part for part in PARTS if part != "stream"),
}
SECONDS = ("generation", "experience", "train", "sync")
SIZE, MICRO_BATCH_SIZE, STEPS = 8, 4, 20
LENGTHS = LogNormal(median=955, between=1.3, within=0.48, cap=16384, prompts=1024)


def work_of(parts: tuple[str, ...], *, packed: bool, actor_gpus: int) -> Work:
    """What the actors do in an arm; they stream only where training would."""
    padded = "length" if "micro_batches" in parts else "shuffled"
    return Work(
        old_log_probs="auto" if "old_log_probs" in parts else "forward",
        micro_batches="packed" if packed else padded,
        stream="auto" if "stream" in parts else "off",
        micro_batch_size=MICRO_BATCH_SIZE,
        actor_gpus=actor_gpus,
    )


def measure(arm: str, gpus: int, prompts: int, packed: bool, seed: int, actor_share: float) -> dict:
    """One simulated run: means over its steps."""
    additions = "".join(
        f"+{flag}" for part, flag in (("tail", "tail:1.25"), ("lengths", "lengths")) if part in ARMS[arm]
    )
    work = work_of(ARMS[arm], packed=packed, actor_gpus=0 if arm.startswith(IN_TURNS) else round(gpus * actor_share))
    engine = ENGINES / "h100-7b.json"
    run = started(f"fixed:{SIZE}{additions}", gpus, LENGTHS, engine, work, batch_size=prompts, seed=seed)
    columns = ["seconds", *(f"{part}_seconds" for part in SECONDS), "sample_share", "hidden_seconds"]
    means = pd.DataFrame([run.step() for _ in range(STEPS)]).reindex(columns=columns).fillna(0.0).mean()
    key = {"gpus": gpus, "prompts": prompts, "samples": "packed" if packed else "padded", "arm": arm, "seed": seed}
    return {**key, **means}


def arms_of(packed: bool) -> list[str]:
    """Arms that differ; where samples are packed, of those that come to the same the first."""
    if not packed:
        return [*ARMS]
    found: dict[tuple, str] = {}
    for arm, parts in ARMS.items():
        rest = tuple(part for part in parts if part not in ("micro_batches", "stream"))
        found.setdefault((rest, arm.startswith(IN_TURNS)), arm)
    return [*found.values()]


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each setting and arm: mean seconds over the seeds, and how many times as fast as nothing it is.

    `low` and `high` are the ends of the latter over the seeds.
    """
    rows = []
    for (gpus, prompts, samples), of_setting in runs.groupby(["gpus", "prompts", "samples"], sort=False):
        seconds = of_setting.pivot(index="seed", columns="arm", values="seconds")
        for arm, mine in of_setting.groupby("arm", sort=False):
            ratios = seconds[NOTHING] / seconds[arm]
            row = {"gpus": gpus, "prompts": prompts, "samples": samples, "arm": arm}
            row |= mine.drop(columns=[*row, "seed"]).mean().to_dict()
            rows.append(row | {"speedup": ratios.mean(), "low": ratios.min(), "high": ratios.max()})
    return pd.DataFrame(rows)


def report(table: pd.DataFrame) -> str:
    """The tables as Markdown, one a number of prompts and kind of samples; s a step, and times as fast as nothing."""
    text = []
    for (prompts, samples), mine in table.groupby(["prompts", "samples"], sort=False):
        titles = [f"{gpus:,} GPUs: {title}" for gpus in mine["gpus"].unique() for title in ("s a step", "times")]
        rows = []
        for arm, of_arm in mine.groupby("arm", sort=False):
            pairs = [(f"{x.seconds:.1f}", f"{x.speedup:.2f} [{x.low:.2f}, {x.high:.2f}]") for x in of_arm.itertuples()]
            rows.append([arm, *itertools.chain(*pairs)])
        of_samples = markdown(["parts", *titles], rows, "l" + "r" * len(titles))
        text.append(f"{prompts:,} prompts, samples {samples}\n\n{of_samples}")
    return "\n".join(text)


def plot(table: pd.DataFrame, path: Path) -> None:
    """A row a number of prompts, a panel a number of GPUs: the seconds of a padded step by part, a bar an arm."""
    table = table[table["samples"] == "padded"]
    shape = table["prompts"].nunique(), table["gpus"].nunique()
    size = (2.4 + 3.4 * shape[1], 0.6 + 3.1 * shape[0])
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, ((prompts, gpus), rows) in zip(axes.flat, table.groupby(["prompts", "gpus"])):
        left = 0 * rows["seconds"]
        for part, color in zip(SECONDS, ("C0", "C2", "C1", "0.5")):
            axis.barh(rows["arm"], rows[f"{part}_seconds"], left=left, color=color, label=part)
            left = left + rows[f"{part}_seconds"]
        for arm, seconds, times in zip(rows["arm"], rows["seconds"], rows["speedup"]):
            axis.text(seconds, arm, f" {times:.2f}", va="center", fontsize="x-small")
        axis.set_title(f"{gpus:,} GPUs, {prompts:,} prompts: s a step, times as fast", fontsize="small")
        axis.set_xlim(right=1.15 * rows["seconds"].max())
        axis.grid(alpha=0.3, axis="x")
    axes[0, 0].invert_yaxis()
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    save(figure, path)


def parse_arguments() -> argparse.Namespace:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--gpus", type=int, nargs="+", default=[16, 128, 1024], help="actors and engines together")
    parser.add_argument("--actor_share", type=float, default=0.5, help="of the GPUs")
    parser.add_argument("--batch_size", type=int, nargs="+", default=[128, 512], help="prompts of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    if uneven := [gpus for gpus in arguments.gpus if not 0 < round(gpus * arguments.actor_share) < gpus]:
        raise ValueError(f"--actor_share {arguments.actor_share} of --gpus {uneven[0]} leaves actors or engines none")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    plan = [
        (arm, gpus, prompts, packed, seed, arguments.actor_share)
        for prompts, packed, gpus in itertools.product(arguments.batch_size, (False, True), arguments.gpus)
        for arm in arms_of(packed)
        for seed in arguments.seeds
    ]
    runs = pd.DataFrame([measure(*run) for run in track(plan, "simulated runs")])
    table = summary(runs)
    arguments.output.mkdir(parents=True, exist_ok=True)
    runs.to_csv(arguments.output / "runs.csv", index=False, float_format="%.5g")
    (arguments.output / "table.md").write_text(report(table))
    plot(table, arguments.output / "faster_step.png")
    print(report(table))

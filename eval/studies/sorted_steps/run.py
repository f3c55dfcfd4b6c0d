"""What sorted steps gain against tail batching that stops, simulated, and how far an ideal scheduler is.

python eval/studies sorted_steps          # 4,096 prompts in five epochs, lengths like a reasoning model's up to 16k tokens
python eval/studies sorted_steps table    # the table of these runs once more
python eval/studies sorted_steps sizes    # the sizes of the recipes, on few and many GPUs: whether the default ever loses
python eval/studies sorted_steps lengths  # what carries it: five public sets of lengths, a filter, prompts that come once
python eval/studies sorted_steps measured # what runs of Route on the real stack say, once more

The ideal scheduler knows every response before it is sampled: frames are sorted by the longest one of each group, and
nothing is stopped.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from lib.intervals import half_of, interval
from lib.paths import ENGINES, STUDIES, study_flags
from lib.plots import plt, save
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.epochs import Epochs
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import LogNormal
from lib.simulation.runs import SUMMED, train
from lib.tables import show
from rich.progress import track
from studies.sorted_steps import lengths, sizes
from studies.sorted_steps.measured import against_plain

LENGTHS = LogNormal(median=955, between=1.3, within=0.48, cap=16384)
PROMPTS, STEPS = 4096, 160  # five epochs of 128 prompts a step
MEASURED, FIRST_EPISODE = STUDIES / "compare/long_tail_sorted/steps.csv", 20  # its steps
STOP, IDEAL = "fixed:8+tail:stop", "ideal"
ARMS = {  # policy and prompt_ratio
    STOP: (STOP, None),
    "fixed:8": ("fixed:8", None),
    "fixed:8+tail:sort": ("fixed:8+tail:sort", None),
    "the same, ratio 1.02": ("fixed:8+tail:sort", 1.02),
    "fixed:8+tail": ("fixed:8+tail", None),
    IDEAL: ("fixed:8+tail:sort", None),
}


def rows_of(arm: str, gpus: int, seed: int) -> pd.DataFrame:
    """The figures of each step of a run."""
    word, ratio = ARMS[arm]
    source = Epochs(LENGTHS, PROMPTS, 8, seed)
    settings = {"batch_size": 128, "n_samples_per_prompt": 8, "prompt_tokens": 256, "dynamic_sampling": False}
    arguments = default_arguments(**settings, seed=seed, prompt_ratio=ratio)
    run = train(parse_policy(word), gpus, source, CostModel.load(ENGINES / "h100-7b.json"), arguments)
    if arm == IDEAL:
        run.planner.predictor.predict = source.longest
    return pd.DataFrame(run.step() for _ in range(STEPS)).assign(arm=arm, gpus=gpus, seed=seed)


def measure(gpus: list[int], seeds: list[int]) -> pd.DataFrame:
    """A row for each run: seconds of generation in the first epoch, in the last half and in all, and shares of tokens."""
    found = []
    for count, arm, seed in track([*itertools.product(gpus, ARMS, seeds)], "simulating"):
        steps = rows_of(arm, count, seed)
        seconds, sums = steps["generation_seconds"], steps[[*SUMMED]].sum()
        row = {"gpus": count, "arm": arm, "seed": seed, "first epoch": seconds[: STEPS // 5].sum()}
        row |= {"last half": seconds[STEPS // 2 :].sum(), "all": seconds.sum()}
        row |= {"wasted_share": sums["wasted_tokens"] / sums["decoded_tokens"]}
        row |= {"trained_length_ratio": sums["trained_tokens"] / sums["expected_tokens"]}
        late = steps[STEPS // 2 :][[*SUMMED]].sum()
        row |= {"late_wasted_share": late["wasted_tokens"] / late["decoded_tokens"]}
        found.append(row | {"late_length_ratio": late["trained_tokens"] / late["expected_tokens"]})
    return pd.DataFrame(found)


def against_stop(rows: pd.DataFrame) -> pd.DataFrame:
    """How many times as fast as tail batching that stops each arm generates, with 95 % intervals over the seeds.

    Behind them is how many times as fast as the arm the ideal scheduler is in the last half.
    """
    spans, found = ["first epoch", "last half", "all"], []
    base, best = (rows[rows["arm"] == arm].set_index(["gpus", "seed"])[spans] for arm in (STOP, IDEAL))
    for (gpus, arm), own in rows.groupby(["gpus", "arm"], sort=False):
        own = own.set_index(["gpus", "seed"])
        row: dict[str, object] = {"gpus": gpus, "arm": arm}
        for span in spans:
            logs = np.log(base.loc[own.index, span] / own[span])
            row[span] = interval(np.exp(logs.mean()), np.exp(half_of(logs)), multiplied=True)
        row["ideal"] = f"{np.exp(np.log(own['last half'] / best.loc[own.index, 'last half']).mean()):.2f}"
        row["tokens wasted, %"] = f"{100 * own['late_wasted_share'].mean():.2f}"
        bias = 100 * (own["late_length_ratio"] - 1)
        row["length, %"] = interval(bias.mean(), half_of(bias))
        found.append(row)
    return pd.DataFrame(found)


def plot(rows: pd.DataFrame, file: Path) -> None:
    """How many times as fast as plain steps each method generates in the first episode and in the last half."""
    spans, seeds = ["first epoch", "last half"], rows.groupby(["gpus", "arm"], sort=False)[
        ["first epoch", "last half"]
    ]
    means = seeds.mean()
    gpus = rows["gpus"].unique()
    figure, axes = plt.subplots(1, len(gpus), figsize=(9, 3), squeeze=False, sharey=True, layout="constrained")
    for axis, count in zip(axes[0], gpus):
        gains = means.loc[count].loc["fixed:8"] / means.loc[count]
        for place, span in enumerate(spans):
            axis.bar(np.arange(len(gains)) + 0.4 * place, gains[span], 0.38, label=span.replace("epoch", "episode"))
        labels = [arm.removeprefix("fixed:8").replace("the same, ratio", "sort,") or "plain" for arm in gains.index]
        axis.set_xticks(np.arange(len(gains)) + 0.2, labels, rotation=20)
        axis.set_title(f"{count} GPUs")
    axes[0, 0].set_ylabel("times as fast as plain steps")
    axes[0, 0].legend(frameon=False)
    save(figure, file)


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("part", choices=["gains", "table", "sizes", "lengths", "measured"], nargs="?", default="gains")
    parser.add_argument(
        "--gpus", type=int, nargs="+", help="of gains and lengths 16 and 128 if not given; of sizes those of the grid"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    sizes.add_flags(parser)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.part in ("sizes", "lengths"):
        {"sizes": sizes, "lengths": lengths}[arguments.part].measure(arguments.output, arguments)
        return
    if arguments.part == "measured":
        show("Route on the real stack", against_plain(pd.read_csv(MEASURED), "fixed:8", FIRST_EPISODE))
        return
    file = arguments.output / "runs.csv"
    if arguments.part == "gains":
        measure(arguments.gpus or [16, 128], arguments.seeds).to_csv(file, index=False, float_format="%.6g")
    rows = pd.read_csv(file)
    show("generation against tail batching that stops", against_stop(rows))
    plot(rows, arguments.output / "generation.png")

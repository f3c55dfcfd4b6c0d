"""Calibrates the engine model to the CPU stack, and shows what it predicts for group sizes that it has not seen.

It trains the Countdown model of a folder that train_scripts/quickstart.sh has made, at learning rate 0, with every fixed
group size of group_sizes.py at a constant number of samples and of prompts, in rounds of alternating order. A forward pass makes
old log-probabilities, since it is what experience costs in the simulator. Started again, it keeps the runs that are finished.

One engine admits all rollouts of these steps at once, so the seconds of a step are linear in its longest response, its
tokens and a constant. They are fitted by non-negative least squares. For each size, the costs fitted on the other sizes
and a trace of the model's response lengths predict the mean seconds of a step. It writes calibration.csv, calibration.md
and calibration.png, and the costs fitted on all sizes to --engine.
"""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
from lib.comparison.group_size_runs import PROMPTS, SAMPLES, SIZES, flags_of, run
from lib.paths import ENGINES, QUICKSTART, ROOT, check_output_file, check_task, study_flags
from lib.plots import plt, save
from lib.simulation.costs import CostModel
from lib.simulation.lengths import Trace
from lib.simulation.training import SimulatedTraining
from lib.tables import markdown
from rich.progress import track
from scipy.optimize import nnls

from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.tail_batching import NoTailBatching

PARTS = {
    "generation": "timing/generation",
    "experience": "timing/make_experience",
    "train": "timing/ppo_train",
    "sync": "timing/broadcast",
}
# The costs of each part of a step, and what they are multiplied with.
TERMS = {
    "generation": {
        "generation_base": "one",
        "decode_base": "tokens_max",
        "decode_per_request": "tokens",
        "prefill_per_token": "prompt_tokens",
    },
    "experience": {"experience_base": "one", "experience_per_token": "all_tokens"},
    "train": {"train_base": "one", "train_per_token": "all_tokens"},
    "sync": {"sync": "one"},
}
# Not fitted: the cache has 1 GiB (1,152 bytes a token), vLLM runs 128 at once, contexts are too short to tell a cost.
GIVEN = {"decode_per_kv_token": 0.0, "max_running": 128, "kv_limit": 931968, "gpus_per_engine": 1}
HOLDS = ("samples", "prompts")
ROUNDS, STEPS, SIMULATED_STEPS = 2, 25, 1000  # of a training run STEPS, about


def measure(task: Path) -> pd.DataFrame:
    """Train with every hold and size in each round; a row a step without the warm-up, see `features`."""
    pairs = [(hold, size) for size in SIZES for hold in HOLDS]
    plan = [(number, *pair) for number in range(ROUNDS) for pair in (pairs[::-1] if number % 2 else pairs)]
    frames = []
    for number, hold, size in track(plan, "training runs"):
        flags = [*flags_of(hold, [size], STEPS), "--train.old_log_probs", "forward"]
        log = run(task, ROOT / f"build/calibration/round-{number}/{hold}-fixed-{size}", flags)
        frames.append(features(log).assign(round=number, hold=hold, size=size))
    return pd.concat(frames, ignore_index=True)


def features(log: pd.DataFrame) -> pd.DataFrame:
    """What a step's seconds are fitted to, in tokens of the whole step, and its measured seconds by part."""
    samples = log["rollout/num_samples"]
    frame = pd.DataFrame(
        {
            "one": 1.0,
            "samples": samples,
            "tokens_max": log["rollout/response_length_max"],
            "tokens": log["response_length"] * samples,
            "all_tokens": log["total_length"] * samples,
        }
    )
    frame["prompt_tokens"] = frame["all_tokens"] - frame["tokens"]
    seconds = log[list(PARTS.values())].set_axis([f"{part}_seconds" for part in PARTS], axis=1)
    return pd.concat([frame, seconds], axis=1).assign(seconds=log["timing/step_total"])


def fit(steps: pd.DataFrame) -> CostModel:
    """Costs with the least squares of relative errors: each step's error over the mean of its hold and size."""
    fitted = {}
    for part, terms in TERMS.items():
        seconds = steps[f"{part}_seconds"]
        scale = seconds.groupby([steps["hold"], steps["size"]]).transform("mean")
        matrix = steps[list(terms.values())].div(scale, axis=0)
        fitted |= zip(terms, nnls(matrix.to_numpy(), (seconds / scale).to_numpy())[0].tolist())
    return CostModel(**fitted, **GIVEN)


def predict(costs: CostModel, trace: Trace, hold: str, size: int, prompt_tokens: int) -> pd.Series:
    """Mean seconds of a simulated step, and of its parts, with this fixed group size."""
    planner = StepPlanner(
        StragglerAwareGroupController([size]),
        DynamicSampler(tolerance=None),
        NoTailBatching(),
        predictor=None,
        hold=hold,
        samples=SAMPLES,
        prompts=PROMPTS,
        signal="tokens",
        num_engines=1,
    )
    training = SimulatedTraining(planner, trace, costs, gpus=1, prompt_tokens=prompt_tokens)
    return pd.DataFrame(training.step() for _ in range(SIMULATED_STEPS)).mean()


def leave_one_size_out(steps: pd.DataFrame, trace: Trace) -> pd.DataFrame:
    """A row for each size and hold: measured seconds, and predicted ones from costs fitted on the other sizes."""
    rows = []
    names = ["seconds", *(f"{part}_seconds" for part in PARTS)]
    prompt_tokens = round((steps["prompt_tokens"] / steps["samples"]).mean())
    for (size, hold), own in steps.groupby(["size", "hold"]):
        predicted = predict(fit(steps[steps["size"] != size]), trace, hold, size, prompt_tokens)
        measured = own[names].mean()
        of_rounds = own.groupby("round")["seconds"].mean()
        row = {"size": size, "hold": hold, "steps": len(own), "measured": measured["seconds"]}
        row |= {"lowest_round": of_rounds.min(), "highest_round": of_rounds.max(), "predicted": predicted["seconds"]}
        row["error_percent"] = 100 * (predicted["seconds"] / measured["seconds"] - 1)
        for name in names[1:]:
            row |= {f"measured_{name}": measured[name], f"predicted_{name}": predicted[name]}
        rows.append(row)
    return pd.DataFrame(rows)


def report(table: pd.DataFrame) -> str:
    """The table as Markdown."""
    titles = ["group size", "hold", "steps", "measured s a step (rounds)", "predicted", "error", *PARTS]
    rows = []
    for row in table.itertuples():
        cells = [row.size, row.hold, row.steps, f"{row.measured:.2f} ({row.lowest_round:.2f}-{row.highest_round:.2f})"]
        cells += [f"{row.predicted:.2f}", f"{row.error_percent:+.1f} %"]
        for part in PARTS:
            measured, predicted = getattr(row, f"measured_{part}_seconds"), getattr(row, f"predicted_{part}_seconds")
            cells.append(f"{measured:.2f} → {predicted:.2f}")
        rows.append(cells)
    return markdown(titles, rows, alignment="rl" + "r" * (len(titles) - 2))


def plot(table: pd.DataFrame, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, hold in zip(axes, HOLDS):
        rows = table[table["hold"] == hold]
        x, bottom = np.arange(len(rows)), np.zeros(len(rows))
        for i, part in enumerate(PARTS):
            seconds = rows[f"predicted_{part}_seconds"].to_numpy()
            axis.bar(x, seconds, 0.6, bottom=bottom, label=f"predicted: {part}", color=plt.cm.Blues(0.8 - 0.18 * i))
            bottom += seconds
        spread = np.array([rows["measured"] - rows["lowest_round"], rows["highest_round"] - rows["measured"]])
        axis.errorbar(
            x, rows["measured"], spread.clip(min=0), fmt="o", color="C3", capsize=5, label="measured, and its rounds"
        )
        axis.set_xticks(x, rows["size"])
        axis.set_title(f"constant {hold}", fontsize="medium")
        axis.set_xlabel("group size, left out of the fit")
        axis.grid(alpha=0.3, axis="y")
    axes[0].set_ylabel("mean s a step")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside right center", fontsize="small")
    save(figure, path)


def main() -> None:
    folder = Path(__file__).parent
    parser = study_flags(__doc__, folder)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    parser.add_argument("--engine", type=Path, default=ENGINES / "cpu-2-cores.json", help="fitted costs")
    arguments = parser.parse_args()
    check_task(arguments.task)
    check_output_file("engine", arguments.engine)
    steps = measure(arguments.task.resolve())
    table, costs = leave_one_size_out(steps, Trace(folder / "countdown.csv")), fit(steps)
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / "calibration.csv"
    table.to_csv(path, index=False, float_format="%.4g")
    path.with_suffix(".md").write_text(report(table))
    plot(table, path.with_suffix(".png"))
    about = (
        "Two CPU cores and the quickstart's model: made by eval/studies simulate, see eval/studies/simulate/README.md."
    )
    found = {"about": about, "calibration": os.path.relpath(path.resolve(), ROOT), **vars(costs)}
    arguments.engine.write_text(json.dumps(found, indent=2) + "\n")
    print(report(table))

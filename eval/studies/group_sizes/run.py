"""Group control against the fixed sizes 4, 8, 16 and 32, at a constant number of samples a step.

It trains the Countdown model on the CPU stack with a learning rate of 0, so that all runs sample from the same policy and
differ by their group sizes only. A fixed size is a run that has no other candidate; control is there with each objective
at the limit, and with the objective throughput where the limit is out of the way. The repetitions take turns. N samples in
groups of G count as N (G - 1) / G. It needs a folder that train_scripts/quickstart.sh has made, and writes table.csv. Started
again, it keeps the runs that are finished.
"""

import itertools
from pathlib import Path

import pandas as pd
from lib.comparison.group_size_runs import SIZES, flags_of, run
from lib.paths import QUICKSTART, ROOT, check_task, study_flags
from lib.tables import show
from rich.progress import track

COLUMNS = {
    "sagc/group_size": "mean group size",
    "sagc/straggler_rate": "straggler rate",
    "rollout/num_samples": "samples a step",
    "rollout/response_length_max": "step maximum (tokens)",
    "rollout/idle_fraction": "idle fraction",
    "timing/generation": "rollout s a step",
    "timing/step_total": "s a step",
}
EFFECTIVE = "effective samples a second"
LIMIT, NO_LIMIT = 0.2, 0.95
STEPS, REPETITIONS = 40, 3


def arms() -> dict[str, tuple[list[int], list[str]]]:
    """Group sizes and flags of every policy."""
    found = {f"fixed {size}": ([size], []) for size in SIZES}
    for objective, limit in (("throughput", NO_LIMIT), ("throughput", LIMIT), ("size", LIMIT)):
        flags = ["--rollout.sagc.objective", objective, "--rollout.sagc.max_straggler_rate", str(limit)]
        found[f"{objective}, limit {limit:g}"] = SIZES, flags
    return found


def summary(policy: str, runs: list[pd.DataFrame]) -> dict:
    """One row of the table: means over the steps of all repetitions, medians of the seconds."""
    steps = pd.concat(runs)
    row = {"hold": "samples", "policy": policy, "runs": len(runs), "steps": len(steps)}
    for column, label in COLUMNS.items():
        row[label] = steps[column].median() if column.startswith("timing/") else steps[column].mean()
    effective = steps["rollout/num_samples"] * (1 - 1 / steps["sagc/group_size"])
    return row | {EFFECTIVE: effective.sum() / steps["timing/step_total"].sum()}


def with_shares(table: pd.DataFrame) -> pd.DataFrame:
    """The table with each policy's effective samples a second over those of the best fixed size that meets its limit.

    Fixed sizes have none, and are compared with the best of all. The smallest stands in where none meets the limit.
    """
    shares, fixed = [], table[table["policy"].str.startswith("fixed")]
    meets = fixed["straggler rate"] <= LIMIT
    for _, row in table.iterrows():
        others = fixed
        if row["policy"].endswith(f"limit {LIMIT:g}"):
            others = fixed[meets] if meets.any() else fixed[:1]
        shares.append(row[EFFECTIVE] / others[EFFECTIVE].max())
    return table.assign(**{"share of the best": shares})


def main() -> None:
    parser = study_flags(__doc__, Path(__file__).parent)
    parser.add_argument("--task", type=Path, default=QUICKSTART, help="warm-started task folder")
    arguments = parser.parse_args()
    check_task(arguments.task)
    runs: dict[str, list[pd.DataFrame]] = {}
    for repetition, (policy, (sizes, flags)) in track([*itertools.product(range(REPETITIONS), arms().items())]):
        folder = ROOT / f"build/group_sizes/samples-{policy.replace(' ', '-').replace(',', '')}-{repetition}"
        # A run may have up to twice the steps.
        words = flags_of("samples", sizes, STEPS, usual_size=16 if policy.endswith(f"limit {NO_LIMIT:g}") else 6)
        steps = run(arguments.task.resolve(), folder, [*words, *flags, "--train.seed", str(repetition)])
        runs.setdefault(policy, []).append(steps.iloc[:STEPS])
    table = with_shares(pd.DataFrame([summary(*of) for of in runs.items()]))
    arguments.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(arguments.output / "table.csv", index=False, float_format="%.4f")
    show("group control against fixed sizes", table)

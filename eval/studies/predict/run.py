"""Measured against simulated seconds of a step, of every arm of a comparison or of a step's time; the costs are those of one arm.

It reads the steps of a folder that eval/compare.py or the study step_time has written, and starts no run. For each algorithm
and group size the costs of the CPU stack are scaled until the simulated seconds of each part of a step are those of
--costs_of. Then the other arms are simulated with these costs, on engines and an actor that do not disturb each other, with
lengths from a trace of the model that all runs start from. It writes predicted.csv and predicted.md into the folder.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from lib.comparison.arms import ALGORITHMS, MICRO_BATCH_SIZE, OPTIMIZER_STEPS, SAMPLES, SIZES, first_step_of
from lib.comparison.step_arms import ALL_OFF, ARM, UNPATCHED, values_of
from lib.paths import ENGINES, STUDIES
from lib.policies import Policy, parse_policy
from lib.run_report.measured import PARTS as SECONDS
from lib.simulation.costs import CostModel
from lib.simulation.flags import default_arguments
from lib.simulation.lengths import Trace
from lib.simulation.work import Work
from rich.progress import track
from studies.predict.prediction import PARTS, measured_and_predicted, report, scaled, simulated_steps

CONTROL = ("max_straggler_rate", "straggler_ratio", "tradeoff")  # settings of a comparison
REPETITIONS = 20  # simulated runs of a comparison's policy, each as long as a measured one
STEPS = 300  # of the simulated run of an arm of step_time


class Arms(NamedTuple):
    """What is predicted: `measured` mean seconds of a step and its PARTS, a row an arm, which is the last name in its index.

    `simulate(costs, key, row)` gives an arm's simulated seconds. `titles` are of the columns that name an arm.
    """

    measured: pd.DataFrame
    simulate: Callable[[CostModel, tuple, pd.Series], pd.Series]
    titles: dict[str, str]


def of_comparison(folder: Path, trace: Path | None) -> Arms:
    """The policies that compare.py has trained, without the first step of a run, which warms vLLM up."""
    steps, settings = pd.read_csv(folder / "steps.csv"), json.loads((folder / "settings.json").read_text())
    if not (trace or "task" in settings):
        raise ValueError(
            f"--trace is required, as {folder / 'settings.json'} names no task: give the lengths of its model"
        )
    check_padded(settings)
    source, key = Trace(trace or STUDIES / f"simulate/{settings['task']}.csv"), ["algorithm", "policy"]
    later = steps[steps["step"] > steps.groupby([*key, "seed"])["step"].transform("min")]
    runs = later.groupby([*key, "seed"], sort=False)[SECONDS]
    means = runs.mean().assign(steps=runs.size()).groupby(key, sort=False).mean()
    control = {name: settings[name] for name in CONTROL}

    def simulate(costs: CostModel, key: tuple, row: pd.Series) -> pd.Series:
        algorithm, policy = key[0], parse_policy(key[1])
        prompts, size = first_step_of(policy)
        flags = settings_of(algorithm, prompts, size, prompt_tokens=7, group_sizes=SIZES, **control)
        run = costs, policy, work_of(switches_of(policy), algorithm, MICRO_BATCH_SIZE), source, round(row["steps"])
        engines = settings.get("num_engines", 1)  # older settings do not say it
        runs = [
            simulated_steps(*run, argparse.Namespace(**vars(flags) | {"seed": seed}), engines).mean()
            for seed in range(REPETITIONS)
        ]
        return pd.DataFrame(runs).mean()

    measured = means.assign(seconds=means[SECONDS].sum(axis=1), rest=0.0, optimizer=float("nan"))
    return Arms(measured, simulate, {"algorithm": "algorithm", "policy": "policy"})


def of_step_time(folder: Path, trace: Path | None) -> Arms:
    """The arms of the study step_time; seconds are medians over a run's steps, and means over runs."""
    steps = pd.read_csv(folder / "steps.csv")
    settings = json.loads((folder / "step_time.json").read_text())["settings"]
    check_padded(settings)
    source = Trace(trace or STUDIES / "simulate/countdown.csv")
    runs = steps.groupby([*ARM, "repetition"], sort=False)[["seconds", *PARTS, "rest", "optimizer"]].median()

    def simulate(costs: CostModel, key: tuple, row: pd.Series) -> pd.Series:
        algorithm, size, arm = key
        flags = settings_of(algorithm, SAMPLES // size, size, prompt_tokens=20)
        work = work_of(values_of(arm), algorithm, settings["micro_batch_size"])
        return simulated_steps(costs, parse_policy(f"fixed:{size}"), work, source, STEPS, flags).median()

    titles = {"algorithm": "algorithm", "size": "group size", "arm": "arm"}
    return Arms(runs.groupby(ARM, sort=False).mean(), simulate, titles)


def check_padded(settings: dict) -> None:
    """Raises ValueError if the steps were packed, which is not what is simulated here."""
    if settings.get("shape") == "gpu":
        raise ValueError(
            "--results has steps of --shape gpu, and those of padded samples alone are predicted: give others"
        )


def settings_of(algorithm: str, prompts: int, size: int, **others) -> argparse.Namespace:
    """The settings of a simulated run with the prompts and the group size of its first step."""
    filters = "algo.dynamic_filtering_enable" in ALGORITHMS[algorithm]
    step = {"batch_size": prompts, "n_samples_per_prompt": size, "dynamic_sampling": filters}
    return default_arguments(**step, max_gen_batches=1000, seed=0, **others)


def switches_of(policy: Policy) -> dict[str, str]:
    """The parts of a faster step that a policy of compare.py has."""
    if policy.kind == UNPATCHED:
        return values_of(ALL_OFF)
    return {
        "old_log_probs": "forward" if "forward" in policy.step else "auto",
        "micro_batches": "shuffled" if "shuffled" in policy.step else "length",
        "stream": "auto" if "stream" in policy.step else "off",
    }


def work_of(switches: dict[str, str], algorithm: str, micro_batch_size: int) -> Work:
    """What one actor does for a step."""
    steps = OPTIMIZER_STEPS[algorithm]
    return Work(**switches, micro_batch_size=micro_batch_size, actor_gpus=1, optimizer_steps=steps)


def predictions(arms: Arms, costs_of: str) -> pd.DataFrame:
    """A row an arm: seconds measured and predicted, with parts, and how many times as fast it is.

    Raises:
        ValueError: the arm that costs are taken from was not run.
    """
    usual, rows = CostModel.load(ENGINES / "cpu-2-cores.json"), []
    *others, last = arms.titles
    for key, measured in track([*arms.measured.groupby(others, sort=False)], "simulated arms"):
        known_key = (*key, costs_of)
        if known_key not in measured.index:
            names = ", ".join(measured.index.get_level_values(last))
            raise ValueError(f"--costs_of {costs_of} was not run for {' at '.join(map(str, key))}: {names}")
        known = measured.loc[known_key]
        costs = scaled(usual, known, arms.simulate(usual, known_key, known))
        found = {arm: arms.simulate(costs, arm, mine) for arm, mine in measured.iterrows()}
        for arm, mine in measured.iterrows():
            row = dict(zip(arms.titles, arm)) | ({"steps": round(mine["steps"])} if "steps" in mine else {})
            rows.append(row | measured_and_predicted(mine, found[arm], known, found[known_key]))
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder of the measured steps")
    parser.add_argument("--costs_of", default="unpatched:8", help="policy or arm that the costs are taken from")
    parser.add_argument(
        "--trace", type=Path, help="lengths of the task's model; by default those of the settings' task"
    )
    arguments = parser.parse_args()
    folder = arguments.results
    read = of_step_time if (folder / "step_time.json").is_file() else of_comparison
    try:
        arms = read(folder, arguments.trace)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"there is no {error.filename}: run eval/compare.py or the study step_time first") from None
    table = predictions(arms, arguments.costs_of)
    text = report(table, arms.titles, arguments.costs_of)
    table.to_csv(folder / "predicted.csv", index=False, float_format="%.4g")
    (folder / "predicted.md").write_text(text)
    print(text)

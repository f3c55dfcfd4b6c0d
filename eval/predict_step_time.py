"""Measured against simulated seconds of the arms of step_time.py; the costs are those of one of the arms.

It reads steps.csv and step_time.json of a folder that step_time.py has written, and starts no run. For each algorithm and
group size, the costs of the CPU stack are scaled until the simulated seconds of each part are those of one arm. The
optimizer's seconds are taken from that arm's log if they are in it. Then the other arms are simulated with these costs, on
an engine and an actor that do not disturb each other, with lengths from a trace of the same model. It writes predicted.csv
and predicted.md into the folder.
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from common.paths import ENGINES, RESULTS
from common.policies import parse_policy
from comparison.arms import ALGORITHMS, OPTIMIZER_STEPS, SAMPLES
from comparison.step_arms import ALL_OFF, ARM, ARMS, values_of
from rich.console import Console
from rich.progress import track
from simulation.costs import CostModel
from simulation.flags import default_arguments
from simulation.lengths import Trace
from simulation.prediction import PARTS, measured_and_predicted, report, scaled, simulated_steps
from simulation.work import Work


def work_of(arm: str, algorithm: str, micro_batch_size: int) -> Work:
    """What the actors do in an arm."""
    steps = OPTIMIZER_STEPS[algorithm]
    return Work(**values_of(arm), micro_batch_size=micro_batch_size, actor_gpus=1, optimizer_steps=steps)


def simulate(costs: CostModel, algorithm: str, size: int, work: Work, arguments: argparse.Namespace) -> pd.Series:
    """Median seconds of a simulated step and of its parts, named as step_time.py names them."""
    settings = default_arguments(
        batch_size=SAMPLES // size,
        n_samples_per_prompt=size,
        prompt_tokens=arguments.prompt_tokens,
        dynamic_sampling="algo.dynamic_filtering_enable" in ALGORITHMS[algorithm],
        max_gen_batches=1000,
        seed=0,
    )
    policy, source = parse_policy(f"fixed:{size}"), Trace(arguments.trace)
    return simulated_steps(costs, policy, work, source, arguments.steps, settings).median()


def compare(steps: pd.DataFrame, micro_batch_size: int, arguments: argparse.Namespace) -> pd.DataFrame:
    """A row an algorithm, size and arm: seconds measured and predicted, with parts, and how many times as fast it is.

    Measured seconds are medians over a run's steps, and means over runs.

    Raises:
        ValueError: the arm that costs are taken from was not run.
    """
    columns = ["seconds", *PARTS, "rest", "optimizer"]
    runs = steps.groupby([*ARM, "repetition"], sort=False)[columns].median()
    measured = runs.groupby(ARM, sort=False).mean()
    usual, rows = CostModel.load(arguments.engine), []
    for (algorithm, size), arms in track(
        measured.groupby(["algorithm", "size"], sort=False), "simulated arms", console=Console(stderr=True)
    ):
        arms = arms.droplevel(["algorithm", "size"])
        if arguments.costs_of not in arms.index:
            raise ValueError(
                f"--costs_of {arguments.costs_of!r} was not run for {algorithm} at {size}: {', '.join(arms.index)}"
            )
        known, work = arms.loc[arguments.costs_of], work_of(arguments.costs_of, algorithm, micro_batch_size)
        costs = scaled(usual, known, simulate(usual, algorithm, size, work, arguments))
        found = {
            arm: simulate(costs, algorithm, size, work_of(arm, algorithm, micro_batch_size), arguments)
            for arm in arms.index
        }
        for arm, mine in arms.iterrows():
            row = {"algorithm": algorithm, "size": size, "arm": arm}
            row |= measured_and_predicted(mine, found[arm], known, found[arguments.costs_of])
            rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS / "step_time", help="folder of step_time.py's results")
    parser.add_argument("--costs_of", choices=ARMS, default=ALL_OFF, help="arm that the costs are taken from")
    parser.add_argument("--engine", type=Path, default=ENGINES / "cpu-2-cores.json", help="costs that are scaled")
    parser.add_argument(
        "--trace", type=Path, default=RESULTS / "simulate/countdown.csv", help="lengths of the task's model"
    )
    parser.add_argument("--prompt_tokens", type=int, default=20, help="of every prompt")
    parser.add_argument("--steps", type=int, default=300, help="of a simulated run")
    arguments = parser.parse_args()
    try:
        steps = pd.read_csv(arguments.results / "steps.csv")
        settings = json.loads((arguments.results / "step_time.json").read_text())["settings"]
        table = compare(steps, settings["micro_batch_size"], arguments)
    except FileNotFoundError as error:
        sys.exit(f"eval/predict_step_time.py: there is no {error.filename}: run eval/step_time.py first")
    except ValueError as error:
        sys.exit(f"eval/predict_step_time.py: {error}")
    text = report(table, {"algorithm": "algorithm", "size": "group size", "arm": "arm"}, arguments.costs_of)
    table.to_csv(arguments.results / "predicted.csv", index=False, float_format="%.4g")
    (arguments.results / "predicted.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

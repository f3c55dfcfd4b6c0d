"""Measured against simulated seconds of the policies of compare.py; the costs are those of one of the policies.

It reads steps.csv and settings.json of a folder that compare.py has written, and starts no run. The costs of the CPU stack
are scaled until the simulated seconds of each part of a step are those of one policy. Then the other policies are
simulated with these costs, on engines and an actor that do not disturb each other, with lengths from a trace of the model that
all runs start from. A simulated run has as many steps as a measured one. It writes predicted.csv and predicted.md into the
folder.
"""

import argparse
import json
import sys
from pathlib import Path

import pandas as pd
from common.paths import ENGINES, RESULTS
from common.policies import Policy, parse_policy
from comparison.arms import ALGORITHMS, MICRO_BATCH_SIZE, OPTIMIZER_STEPS, SIZES, first_step_of
from comparison.report import SECONDS
from comparison.step_arms import ALL_OFF, values_of
from rich.console import Console
from rich.progress import track
from simulation.costs import CostModel
from simulation.flags import default_arguments
from simulation.lengths import Trace
from simulation.prediction import measured_and_predicted, report, scaled, simulated_steps
from simulation.work import Work

KEY = ["algorithm", "policy"]
CONTROL = ("max_straggler_rate", "straggler_ratio", "tradeoff")  # settings of a comparison


def work_of(policy: Policy, algorithm: str, micro_batch_size: int) -> Work:
    """What the actors do under a policy."""
    switches = values_of(ALL_OFF)
    if policy.kind != "unpatched":
        switches = {
            "old_log_probs": "forward" if "forward" in policy.step else "auto",
            "micro_batches": "shuffled" if "shuffled" in policy.step else "length",
            "stream": "auto" if "stream" in policy.step else "off",
        }
    steps = OPTIMIZER_STEPS[algorithm]
    return Work(**switches, micro_batch_size=micro_batch_size, actor_gpus=1, optimizer_steps=steps)


def measured_seconds(steps: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds of a step and of its parts, of the mean run of an algorithm and policy; and its number of steps.

    The first step, which warms vLLM up, is left out.
    """
    later = steps[steps["step"] > steps.groupby([*KEY, "seed"])["step"].transform("min")]
    runs = later.groupby([*KEY, "seed"], sort=False)[SECONDS]
    means = runs.mean().assign(steps=runs.size()).groupby(KEY, sort=False).mean()
    return means.assign(seconds=means[SECONDS].sum(axis=1), rest=0.0, optimizer=float("nan"))


def simulated_seconds(
    costs: CostModel, source: Trace, algorithm: str, word: str, steps: int, arguments: argparse.Namespace
) -> pd.Series:
    """Mean seconds of a simulated step and of its parts, over runs of so many steps."""
    policy = parse_policy(word)
    work = work_of(policy, algorithm, arguments.micro_batch_size)
    prompts, size = first_step_of(policy)
    runs = []
    for seed in range(arguments.repetitions):
        settings = default_arguments(
            **arguments.control,
            group_sizes=SIZES,
            batch_size=prompts,
            n_samples_per_prompt=size,
            prompt_tokens=arguments.prompt_tokens,
            dynamic_sampling="algo.dynamic_filtering_enable" in ALGORITHMS[algorithm],
            max_gen_batches=1000,
            seed=seed,
        )
        runs.append(simulated_steps(costs, policy, work, source, steps, settings, arguments.num_engines).mean())
    return pd.DataFrame(runs).mean()


def compare(steps: pd.DataFrame, arguments: argparse.Namespace) -> pd.DataFrame:
    """A row an algorithm and policy: seconds measured and predicted, with parts, and how many times as fast it is.

    Raises:
        ValueError: the policy that costs are taken from was not run.
    """
    measured, rows = measured_seconds(steps), []
    usual, source = CostModel.load(arguments.engine), Trace(arguments.trace)
    for algorithm, policies in measured.groupby("algorithm", sort=False):
        policies = policies.droplevel("algorithm")
        if arguments.costs_of not in policies.index:
            raise ValueError(
                f"--costs_of {arguments.costs_of} was not run for {algorithm}: {', '.join(policies.index)}"
            )
        known = policies.loc[arguments.costs_of]
        own = simulated_seconds(usual, source, algorithm, arguments.costs_of, round(known["steps"]), arguments)
        costs = scaled(usual, known, own)
        found = {
            word: simulated_seconds(costs, source, algorithm, word, round(mine["steps"]), arguments)
            for word, mine in track([*policies.iterrows()], f"{algorithm}, policies", console=Console(stderr=True))
        }
        for word, mine in policies.iterrows():
            row = {"algorithm": algorithm, "policy": word, "steps": round(mine["steps"])}
            rows.append(row | measured_and_predicted(mine, found[word], known, found[arguments.costs_of]))
    return pd.DataFrame(rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=RESULTS / "compare/long_tail", help="folder of compare.py's results"
    )
    parser.add_argument("--costs_of", default="unpatched:8", help="policy that the costs are taken from")
    parser.add_argument("--engine", type=Path, default=ENGINES / "cpu-2-cores.json", help="costs that are scaled")
    parser.add_argument(
        "--trace", type=Path, help="lengths of the task's model; by default the settings' task says which"
    )
    parser.add_argument("--prompt_tokens", type=int, default=7, help="of every prompt")
    parser.add_argument("--micro_batch_size", type=int, default=MICRO_BATCH_SIZE, help="of the measured runs")
    parser.add_argument("--repetitions", type=int, default=20, help="simulated runs of a policy")
    arguments = parser.parse_args()
    for name in ("micro_batch_size", "repetitions"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} {getattr(arguments, name)} must be at least 1")
    return arguments


def trace_of(settings: dict, path: Path) -> Path:
    """The trace of the task that a comparison has trained.

    Raises:
        ValueError: its settings do not name the task; the message begins with --trace.
    """
    if "task" not in settings:
        raise ValueError(
            f"--trace is required, as {path} names no task: give {RESULTS / 'simulate'}/TASK.csv of the task that was trained"
        )
    return RESULTS / f"simulate/{settings['task']}.csv"


def main() -> None:
    try:
        arguments = parse_arguments()
        steps, path = pd.read_csv(arguments.results / "steps.csv"), arguments.results / "settings.json"
        settings = json.loads(path.read_text())
        arguments.trace = arguments.trace or trace_of(settings, path)
        arguments.control = {name: settings[name] for name in CONTROL}
        arguments.num_engines = settings.get("num_engines", 1)  # older settings do not say it
        table = compare(steps, arguments)
    except (FileNotFoundError, NotADirectoryError) as error:
        sys.exit(f"eval/predict_comparison.py: there is no {error.filename}: run eval/compare.py first")
    except ValueError as error:
        sys.exit(f"eval/predict_comparison.py: {error}")
    text = report(table, {"algorithm": "algorithm", "policy": "policy"}, arguments.costs_of)
    table.to_csv(arguments.results / "predicted.csv", index=False, float_format="%.4g")
    (arguments.results / "predicted.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

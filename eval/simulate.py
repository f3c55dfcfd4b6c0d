"""Seconds a step, idle fraction and straggler rate of group control, tail batching and fixed sizes, without the hardware.

A discrete-event simulation of continuous-batching engines (lib/simulation/engine.py) drives the scheduling and the policies of
training, on a trace of rollout lengths or on a distribution:

    python eval/simulate.py --trace FILE --policies fixed:8,fixed:16,sagc,sagc+tail --json OUT

A policy is `fixed:N`, `sagc` or FILE.py:Class, a class of one's own (docs/architecture.md), or with --actor_gpus `pool:R`, a pool of R
steps' prompts (docs/async.md). `+tail` behind it is tail batching, by the method that is measured best; `+tail:sort` and
`+tail:stop` by this one, `+tail:R` by stop with a response_ratio of R. `+lengths` is placed rollouts, and `@samples` or
`@prompts` is what a step keeps at every group size (else --hold). The same flags and seed give the same JSON. lib/simulation/lengths.py says how a trace is drawn from.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import pandas as pd
from lib.paths import ENGINES, check_output_file, check_overwritten, write_whole
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.flags import add_package_flags
from lib.simulation.lengths import LogNormal, Trace
from lib.simulation.report import plot, print_table
from lib.simulation.runs import check_policy, simulate
from lib.simulation.work import add_work_flags

from openrlhf_sagc.redaction import visible


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lengths = parser.add_mutually_exclusive_group(required=True)
    lengths.add_argument("--trace", type=Path, help="CSV: prompt_id,sample_id,tokens[,correct][,truncated]")
    lengths.add_argument("--lengths", help="lognormal:median=..,between=..,within=..,cap=.. (log-sd; tokens)")
    parser.add_argument("--policies", default="fixed:8,sagc", help="comma-separated, as above")
    parser.add_argument("--engine", type=Path, default=ENGINES / "h100-7b.json", help="JSON of eval/engines")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8], help="numbers of GPUs, a table section each")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=128, help="prompts of a step at --n_samples_per_prompt")
    parser.add_argument("--n_samples_per_prompt", type=int, default=8, help="the first group size of sagc")
    parser.add_argument("--prompt_tokens", type=int, default=256, help="of every prompt")
    parser.add_argument("--dynamic_sampling", action="store_true", help="keep groups whose `correct` differs (DAPO)")
    add_package_flags(parser)
    add_work_flags(parser)
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
        check_output_file(name, getattr(arguments, name))
    inputs = {name: getattr(arguments, name) for name in ("trace", "engine")}
    check_overwritten(inputs, {name: getattr(arguments, name) for name in ("json", "csv", "plot")})
    return arguments


def run(arguments: argparse.Namespace) -> tuple[pd.DataFrame, CostModel]:
    """The table of the command.

    Raises:
        ValueError: a flag or a file does not fit; one line.
    """
    costs = CostModel.load(arguments.engine)
    wrong = [gpus for gpus in arguments.gpus if gpus < 1 or (gpus - arguments.actor_gpus) % costs.gpus_per_engine]
    if wrong:
        less = f" less --actor_gpus {arguments.actor_gpus}" if arguments.actor_gpus else ""
        raise ValueError(f"--gpus {wrong[0]}{less} is not a multiple of the {costs.gpus_per_engine} GPUs of an engine")
    policies = [parse_policy(word, ("fixed", "sagc", "own", "pool")) for word in arguments.policies.split(",")]
    for policy in policies:
        check_policy(policy, arguments)
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
        sys.exit(visible(f"eval/simulate.py: {error}"))
    seconds = time.perf_counter() - began
    print_table(rows)
    rollouts = rows["rollouts"].sum()
    print(f"{rollouts:,} rollouts simulated in {seconds:.1f} s, {rollouts / seconds:,.0f} a second")
    if arguments.json:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
        settings = {name: value for name, value in settings.items() if name not in ("json", "csv", "plot")}
        content = {"settings": settings, "engine": vars(costs), "rows": rows.to_dict("records")}
        write_whole(arguments.json, json.dumps(content, indent=2) + "\n")
    if arguments.csv:
        write_whole(arguments.csv, rows.to_csv(index=False, float_format="%.6g"))
    if arguments.plot:
        plot(rows, arguments.max_straggler_rate, arguments.plot)


if __name__ == "__main__":
    main()

"""Says which switches would make a run faster on a cluster, from a trace of its rollouts, and when none would.

It replays the trace under each switch in the simulator (eval/simulate.py gives the same numbers for the same flags) and
answers in one screen: how much of the tail lies within and between prompts, what each switch gains with a 95 % interval
(bootstrap over prompts), which flags to set, and how far the simulator has been compared with measured steps:

    python eval/advise.py --trace run.csv --gpus 64

The trace is what --rollout.trace of `python -m openrlhf_sagc` or --trace of eval/evaluate.py has written. A run without one,
of unpatched OpenRLHF for example, has its TensorBoard folder: --log says what no switch can exceed. docs/advisor.md has more.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from lib.advice.calibration import calibration_of
from lib.advice.data import can_filter, doubts, read
from lib.advice.replay import gains, replay
from lib.advice.run_log import bound_of, lines_of
from lib.advice.screen import describe_step, describe_tail, describe_trace, plot, print_screen
from lib.advice.switches import switches_of
from lib.advice.tail import step_tails, variance_between
from lib.advice.verdict import floor_of, verdict
from lib.machine import usable_cores
from lib.paths import ENGINES, check_output_file, check_overwritten, write_whole
from lib.policies import parse_policy
from lib.simulation.costs import CostModel
from lib.simulation.flags import add_package_flags
from lib.simulation.runs import check_policy
from rich.console import Console
from rich.progress import Progress

from openrlhf_sagc.redaction import visible

LOWEST = {"steps": 2, "batch_size": 1, "n_samples_per_prompt": 2, "prompt_tokens": 0, "seed": 0, "draws": 4, "jobs": 1}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="CSV: prompt_id,sample_id,tokens[,correct][,truncated]")
    source.add_argument("--log", type=Path, help="folder with the TensorBoard files of a run")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--engine", type=Path, default=ENGINES / "h100-7b.json", help="JSON of eval/engines")
    parser.add_argument("--batch_size", type=int, default=128, help="prompts of a step as it is")
    parser.add_argument("--n_samples_per_prompt", type=int, default=8, help="the group size as it is")
    parser.add_argument("--dynamic_sampling", action="store_true", help="the run has it already")
    parser.add_argument("--tail_batching", action="store_true", help="the run has it already, with response_ratio 1")
    parser.add_argument("--prompt_tokens", type=int, default=256, help="of every prompt")
    parser.add_argument("--steps", type=int, default=40, help="of a replay")
    parser.add_argument("--draws", type=int, default=12, help="of the bootstrap")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="replays at a time")
    add_package_flags(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where settings, figures and advice go")
    parser.add_argument("--plot", type=Path, help="where the plot goes, a PNG")
    arguments = parser.parse_args()
    for name, lowest in LOWEST.items():
        if getattr(arguments, name) < lowest:
            raise ValueError(f"--{name} must be at least {lowest}, got {getattr(arguments, name)}")
    for name in ("json", "plot"):
        check_output_file(name, getattr(arguments, name))
    inputs = {name: getattr(arguments, name) for name in ("trace", "engine")}
    check_overwritten(inputs, {name: getattr(arguments, name) for name in ("json", "plot")})
    return arguments


def advise(arguments: argparse.Namespace) -> dict:
    """Everything that the screen shows: see `main`.

    Raises:
        ValueError: a flag or a file does not fit, or there is too little data; one line.
    """
    costs = CostModel.load(arguments.engine)
    if arguments.gpus < 1 or arguments.gpus % costs.gpus_per_engine:
        raise ValueError(f"--gpus {arguments.gpus} is not a multiple of the {costs.gpus_per_engine} GPUs of an engine")
    calibration = calibration_of(arguments.engine, arguments.hold)
    trace, sizes = read(arguments)
    if arguments.dynamic_sampling and not trace.has_correct:
        raise ValueError("--dynamic_sampling needs a --trace with the column correct: drop one of them")
    arguments.group_sizes, doubtful = sizes, doubts(trace, sizes, arguments)
    switches = switches_of(arguments, sizes, can_filter(trace, arguments))
    for switch in switches:
        check_policy(parse_policy(switch.policy), arguments)
    runs = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("replays", total=(arguments.draws + 1) * len(switches))
        for draw, switch, figures in replay(switches, trace, costs, arguments, arguments.jobs):
            runs[draw, switch.name] = figures
            progress.update(task, advance=1, description=f"{switch.name}, draw {draw}")
    rows = gains(switches, runs)
    if np.isnan(rows["gain"].iloc[0]):
        raise ValueError(f"the run as it is cannot be replayed: {rows['problem'].iloc[0]}")
    return {
        "rows": rows,
        "tail": step_tails(trace, arguments),
        "variance": variance_between(trace.tokens_by_prompt, arguments.seed),
        "trace": trace,
        "doubts": doubtful,
        "calibration": calibration,
        "verdict": verdict(rows, calibration),
    }


def main() -> None:
    try:
        arguments = parse_arguments()
        if arguments.log:
            print(visible("\n".join(lines_of(arguments.log, bound_of(arguments.log)))))
            return
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
        found = advise(arguments)
    except ValueError as error:
        sys.exit(visible(f"eval/advise.py: {error}"))
    rows, (tail, between), calibration = found["rows"], found["tail"], found["calibration"]
    lines = [
        describe_trace(arguments.trace, found["trace"]),
        *describe_tail(tail, found["variance"], between, arguments),
        describe_step(rows.iloc[0], arguments),
        *(f"Note: {doubt}." for doubt in found["doubts"]),
    ]
    print_screen(lines, rows, found["verdict"], calibration)
    if arguments.json:
        content = {
            "settings": {
                name: value for name, value in settings.items() if name not in ("json", "plot", "jobs", "log")
            },
            "tail": tail._asdict() | {"between_interval": between[1:], "variance_between": found["variance"]},
            "rows": json.loads(rows.to_json(orient="records", double_precision=15)),
            "doubts": found["doubts"],
            "calibration": calibration._asdict(),
            "advice": found["verdict"]._asdict(),
        }
        write_whole(arguments.json, json.dumps(content, indent=2) + "\n")
    if arguments.plot:
        plot(rows, found["trace"], found["verdict"], floor_of(calibration), arguments.plot)


if __name__ == "__main__":
    main()

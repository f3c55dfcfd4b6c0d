"""Shows an OpenRLHF run as a progress bar: reads its output on stdin, keeps all of it in a log file.

Without a terminal it prints a line every ten steps. Ends with exit code 1 if no step was finished.
"""

import argparse
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

STEP = re.compile(r"Global step (\d+): \{(.*)\}")
SHOWN = {
    "reward": "rollout/reward_mean",
    "group size": "sagc/group_size",
    "straggler rate": "sagc/straggler_rate_mean",
    "s/step": "timing/step_total",
}


def metric(text: str, key: str) -> float | None:
    """Value of `key` in the text of a metrics dictionary, None where it is absent."""
    found = re.search(rf"'{re.escape(key)}': (-?[\d.]+(?:e-?\d+)?)", text)
    return float(found[1]) if found else None


def watch(lines, log, console: Console, steps: int) -> int:
    """Follow `lines` until they end; returns the number of the last step."""
    last = 0
    bar_columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*bar_columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("starting Ray, vLLM and DeepSpeed", total=steps)
        for line in lines:
            log.write(line)
            found = STEP.search(line)
            if not found:
                continue
            last = int(found[1])
            values = {name: metric(found[2], key) for name, key in SHOWN.items()}
            text = "  ".join(f"{name} {value:.2f}" for name, value in values.items() if value is not None)
            progress.update(bar, completed=last, total=max(steps, last), description=text)
            if not console.is_terminal and last % 10 == 0:
                console.print(f"step {last}: {text}")
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="file for the whole output")
    parser.add_argument("--steps", type=int, required=True, help="steps the run is expected to take")
    arguments = parser.parse_args()
    sys.stdin.reconfigure(errors="replace")
    with arguments.log.open("w", buffering=1) as log:
        last = watch(sys.stdin, log, Console(soft_wrap=True), arguments.steps)
    sys.exit(last == 0)


if __name__ == "__main__":
    main()

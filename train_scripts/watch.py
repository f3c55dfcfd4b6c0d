"""Shows an OpenRLHF run as a line of progress: reads its output on stdin, keeps all of it in a log file.

Ends with exit code 1 if no step was finished.
"""

import argparse
import re
import sys
from pathlib import Path

from progress import progress_line
from rich.console import Console

EPISODE = re.compile(r"Episode \[(\d+)/(\d+)\]:[^\r]*\| (\d+)/(\d+) \[")  # OpenRLHF's own bar, in prompts
STEP = re.compile(r"Global step (\d+): \{(.*)\}")
SHOWN = {
    "reward": "rollout/reward_mean",
    "group size": "sagc/group_size",
    "straggler rate": "sagc/straggler_rate_mean",
}


def metric(text: str, key: str) -> float | None:
    """Value of `key` in the text of a metrics dictionary, None where it is absent."""
    found = re.search(rf"'{re.escape(key)}': (-?[\d.]+(?:e-?\d+)?)", text)
    return float(found[1]) if found else None


def watch(lines, log, console: Console) -> int:
    """Follow `lines` until they end; returns the number of the last step."""
    step, done, text = 0, 0.0, "starting Ray, vLLM and DeepSpeed"
    with progress_line(console, text) as show:
        for line in lines:
            log.write(line)
            for bar in EPISODE.findall(line):  # its states stand in one line, with carriage returns between them
                episode, episodes, prompts, all_prompts = map(int, bar)
                done = (episode - 1 + prompts / all_prompts) / episodes
            if found := STEP.search(line):
                step = int(found[1])
                values = {name: metric(found[2], key) for name, key in SHOWN.items()}
                text = f"step {step}  " + "  ".join(f"{n} {v:.2f}" for n, v in values.items() if v is not None)
                show(done, text)
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="file for the whole output")
    arguments = parser.parse_args()
    sys.stdin.reconfigure(errors="replace")
    with arguments.log.open("w", buffering=1) as log:
        last = watch(sys.stdin, log, Console(soft_wrap=True))
    sys.exit(last == 0)


if __name__ == "__main__":
    main()

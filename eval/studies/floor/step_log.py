"""What the arms of one process have in common: their flags, the task's reward, and a line at the end of every step."""

import argparse
import importlib.util
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

PATHS = ("model", "prompts", "grader", "output")
NUMBERS = ("steps", "seed", "groups", "size", "optimizer_steps", "micro_batch_size", "max_new_tokens", "max_len")


def parse_arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), required=True)
    for names, kind in ((PATHS, Path), (NUMBERS, int)):
        for name in names:
            parser.add_argument(f"--{name}", type=kind, required=True)
    return parser.parse_args()


def draw_prompts(file: Path, count: int, seed: int) -> list[str]:
    """The file's first prompts, as OpenRLHF's --data.max_samples takes them, shuffled."""
    prompts = [json.loads(line)["prompt"] for line in file.read_text().splitlines()[:count]]
    random.Random(seed).shuffle(prompts)
    return prompts


def load_grader(file: Path) -> Callable[[list[str], list[str]], list[float]]:
    """grade(prompts, responses) -> rewards, by a reward function of OpenRLHF's."""
    spec = importlib.util.spec_from_file_location("reward", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def grade(prompts: list[str], responses: list[str]) -> list[float]:
        queries = [f"{prompt} {response}" for prompt, response in zip(prompts, responses)]
        return module.reward_func(queries, prompts, labels=None)["rewards"].tolist()

    return grade


class StepLog:
    """Writes the seconds of a step's parts as a line of JSON, and prints them as OpenRLHF does, which ends a turn."""

    def __init__(self, output: Path):
        self.output, self.step, self.row, self.at = output, 0, {}, time.perf_counter()

    def mark(self, part: str) -> None:
        """A part ends, which began where the one before ended. One that a step has again adds to itself."""
        now = time.perf_counter()
        self.row[part], self.at = self.row.get(part, 0.0) + now - self.at, now

    def note(self, **values: float) -> None:
        """What the step has beside its parts."""
        self.row |= values

    def end(self) -> None:
        self.step += 1
        row = {"step": self.step, "wall_time": time.time(), **self.row}
        with self.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{Path(__file__).name}:1] Global step {self.step}: {row}", flush=True)
        self.row = {}

"""Runs of a comparison as their logs and tables hold them."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from lib.run_report import heldout
from lib.run_report.recorded import read_recorded
from lib.run_report.render import as_markdown
from lib.run_report.write import plain
from lib.synthetic_reward import checksum
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

CONTROL = {"max_straggler_rate": 0.3, "straggler_ratio": 2.5, "tradeoff": 2.0}
SETTINGS = {"target": 0.75, "seconds": 100.0, **CONTROL}
HELDOUT = ["held 1", "held 2"]


def write_events(folder: Path, steps: list[tuple[int, float, dict]], name: str = "") -> Path:
    """An event file with the scalars of (step, time, tag -> value); its name ends with `name`."""
    writer = EventFileWriter(str(folder), filename_suffix=name)
    for step, at, scalars in steps:
        for tag, value in scalars.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=at, step=step, summary=summary))
    writer.close()
    (file,) = folder.glob(f"*tfevents*{name}")
    return file


def write_run(folder: Path, samples: list[tuple], logs: list[tuple[float, dict]], evaluations: dict = {}) -> Path:
    """A run's two logs: samples of (prompt, score, tokens, time), and the scalars of steps with their time.

    `evaluations` are the times at which those of these steps were logged.
    """
    (folder / "tensorboard/run").mkdir(parents=True)
    lines = (f"{checksum(prompt)} {score} {tokens} {at}\n" for prompt, score, tokens, at in samples)
    (folder / "rewards.log").write_text("".join(lines))
    steps = [
        (step, at, {f"train/{name}": value for name, value in log.items()}) for step, (at, log) in enumerate(logs, 1)
    ]
    steps += [(step, at, {"eval/eval_task_pass1": 0.5}) for step, at in evaluations.items()]
    write_events(folder / "tensorboard/run", sorted(steps, key=lambda step: step[1]))
    evaluated = folder / "evaluated.jsonl"
    evaluated.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in HELDOUT))
    return evaluated


def scalars(generation, trained, **more):
    times = {"make_experience": 1.0, "ppo_train": 2.0, "broadcast": 0.5, "generation": generation}
    rollout = {"rollout/num_samples": trained, "rollout/response_length_mean": 14.0}
    return {f"timing/{name}": value for name, value in times.items()} | rollout | more


def learning(policy: str, reach: float, seeds=(0, 1, 2), problems=32) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs whose held-out reward goes up to 1 at `reach` seconds, linear from 0."""
    steps, evaluations = [], []
    for seed in seeds:
        for step in range(11):
            right = np.clip(np.full(problems, 8 * min(10.0 * step / reach, 1.0)).round(), 0, 8).astype(int)
            evaluations.append(
                {"step": step, "seconds": 10.0 * step, "samples": 8, "right": " ".join(map(str, right)), "seed": seed}
            )
            if not step:
                continue
            phases = dict(generation=4.0, idle_tail=1.0, experience=1.0, training=3.0, sync=0.5)
            shape = dict(groups=16, group_size=8, straggler_rate=0.25, reward=0.5, trained=128, virtual_queue=0.1)
            lengths = dict(length_mean=60.0, length_median=50.0, length_max=150.0, trained_length=60.0)
            steps.append({"step": step, "seconds": 10.0 * step, "seed": seed, **phases, **shape, **lengths})
    arm = {"algorithm": "grpo", "policy": policy}
    return pd.DataFrame(steps).assign(**arm), pd.DataFrame(evaluations).assign(**arm)


def record(folder: Path, *arms) -> None:
    """A comparison of the arms, as compare.py writes it."""
    folder.mkdir(exist_ok=True)
    steps, evaluations = (pd.concat(frames) for frames in zip(*arms))
    steps.to_csv(folder / "steps.csv", index=False)
    evaluations.to_csv(folder / "evaluations.csv", index=False)
    (folder / "settings.json").write_text(json.dumps(SETTINGS))


def report_of(folder: Path, *arms) -> tuple[str, dict]:
    """What the report says of a comparison's held-out problems, and its rows of comparison.json by policy."""
    record(folder, *arms)
    found, settings = read_recorded(folder)
    rows = heldout.summaries(found, settings)
    text = as_markdown("", heldout.verdict(rows, settings["target"]), [heldout.section(rows, found, settings)])
    return text, {row["policy"]: plain(row) for row in rows}

"""One launch script as several arms on the same GPUs: one after the other, or in turns by checkpoints."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
from lib.paths import ROOT
from lib.run_logs.console import STEP_END
from lib.turns import Run, end, opened_log

ARMS = ("recommended", "all", "off", "unpatched")  # values of SAGC
LEAST_TURN = 20  # steps, so that the first ones, which warm up, are a small part
SMOKE_DATA = 4  # times the steps for which smoke.sh makes data: groups are dropped
RESUMES = (
    "The arms took turns by checkpoints. Without the scheduler OpenRLHF loses the prompts that were not delivered "
    "when it saved and may begin the wrong episode, so the rewards of `off` and `unpatched` are of other prompts than "
    "without turns. As released, it also evicts its newest checkpoint by its metric (patches 17 and 18)."
)


def train_arms(
    script: str,
    arms: list[str],
    steps: int,
    turn: int,
    output: Path,
    flags: list[str],
    smoke: bool,
    say: Callable[[str], None],
) -> None:
    """Train each arm up to a step; its OUTPUT is `output`/ARM.

    Args:
        script: of train_scripts/.
        arms: of ARMS, in their order.
        steps: of each arm.
        turn: steps after which the next arm goes on, on the same GPUs; `steps` for one after the other.
        flags: for all arms.
        smoke: by smoke.sh, on the CPU.
        say: called with a sentence before each turn.

    Raises:
        ValueError: a run failed or ended too early; the message is one line.
    """
    command = ["bash", str(ROOT / "train_scripts" / script)]
    variables = {"RUN_NAME": "run", "PYTHONUNBUFFERED": "1"}
    if "unpatched" in arms:
        variables["ATTENTION"] = "flash_attention_2"  # which it cannot do without, so the others have it too
    if smoke:
        command = ["bash", str(ROOT / "train_scripts/smoke.sh"), script]
        variables["STEPS"] = str(SMOKE_DATA * steps)  # the same data in every turn
    for start in range(0, steps, turn):
        until = min(start + turn, steps)
        for arm in arms:
            say(f"{arm}: steps {start + 1} to {until}")
            variables |= {"SAGC": arm, "OUTPUT": str((output / arm).resolve())}
            words = [*command, *flags, *_turn_flags(start, turn, steps)]
            _one_turn(words, variables, start, until, goes_on=until < steps)


def _turn_flags(start: int, turn: int, steps: int) -> list[str]:
    if turn >= steps:
        return []
    return ["--ckpt.save_steps", str(turn), *(["--ckpt.load_enable"] if start else [])]


def _one_turn(command: list[str], variables: dict[str, str], start: int, until: int, goes_on: bool) -> None:
    """Train from one step to another and end the run; its checkpoint is whole once the step behind it has ended."""
    arm, folder = variables["SAGC"], Path(variables["OUTPUT"])
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"turn-{start + 1}-{until}.log"
    with opened_log(log) as sink:
        process = psutil.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env={**os.environ, **variables})
    run = Run(process, log)
    try:
        printed = run.take_turn(STEP_END, until - start + goes_on)
    finally:
        end([run])
    reached = len(STEP_END.findall(printed))
    if reached < until - start:
        raise ValueError(
            f"{arm} ended after {reached} of {until - start} steps: give more data or episodes, or see {log}"
        )

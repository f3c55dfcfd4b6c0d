"""The checks in their order, each in a process of its own, and which of them go on where one has failed."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from subprocess import TimeoutExpired

from lib.gpu_checks import attention, kernel, log_probs, machine, optimizer, recipes, sizes, stops
from lib.gpu_checks.outcomes import FAIL, PASS, SKIPPED, Node, NotHere, Outcome, for_strangers
from lib.gpu_checks.processes import ROOT, started

MINUTES = 15  # on GPUs, for all checks
SLOWER = 10  # times the seconds of a check that a dry run may take
LEAST = 60  # seconds without which no check begins that has none of its own
STACK = ROOT / "build/cpu-patched"  # of the CPU; without it a dry run does without OpenRLHF


@dataclass(frozen=True)
class Check:
    """A line of the report.

    Args:
        number: of the ten; 0 for those besides.
        seconds: that it may take on a GPU, and what earlier checks have not used.
        needs: checks without whose pass it says nothing, and is skipped. A dry run does without a driver.
        gpus: of the node.
    """

    number: int
    name: str
    seconds: int
    run: Callable[[Node], Outcome]
    needs: tuple[str, ...] = ()
    gpus: int = 1


CHECKS = (
    Check(1, "driver", 40, machine.driver),
    Check(1, "compiler", 30, machine.compiler),
    Check(2, "attention", 40, attention.check, needs=("driver",)),
    Check(3, "adam", 100, optimizer.check, needs=("driver",)),
    Check(4, "log_probs", 30, log_probs.check, needs=("driver",)),
    Check(5, "recipe", 170, recipes.recipe, needs=("driver", "attention")),
    Check(6, "resume_and_kill", 90, recipes.resume_and_kill, needs=("recipe",)),
    Check(7, "two_ranks", 100, recipes.two_ranks, needs=("driver", "attention"), gpus=2),
    Check(8, "asynchronous", 70, recipes.asynchronous, needs=("driver", "attention"), gpus=2),
    Check(8, "one_call", 60, recipes.one_call, needs=("driver", "attention"), gpus=2),
    Check(9, "stops", 50, stops.check, needs=("driver",)),
    Check(10, "sizes", 120, sizes.check, needs=("driver", "attention")),
    # With what the ten have left of the time.
    Check(0, "kernel_tests", 0, kernel.tests, needs=("driver",)),
    Check(0, "packed_step", 0, kernel.packed, needs=("driver",)),
    Check(0, "bucket_step", 0, kernel.buckets, needs=("kernel_tests",)),
    Check(0, "kernel_times", 0, kernel.times, needs=("kernel_tests",)),
)


def with_needs(names: Sequence[str]) -> list[Check]:
    """The checks of these names and what they need; all of them for no names."""
    wanted = set(names) or {check.name for check in CHECKS}
    for check in reversed(CHECKS):  # what a check needs comes before it
        wanted |= set(check.needs) if check.name in wanted else set()
    return [check for check in CHECKS if check.name in wanted]


def run_all(
    checks: Sequence[Check], node: Node, run: Callable[[Check, Node, float], Outcome]
) -> Iterator[tuple[Check, Outcome]]:
    """Each check's outcome, as soon as it is there.

    Args:
        run: runs a check for so many seconds at most.
    """
    begin, share, stopped, gpus = time.monotonic(), 0.0, set(), 1
    for check in checks:
        share += check.seconds
        ends = begin + (share if check.seconds else 60 * MINUTES)
        seconds = SLOWER * max(check.seconds, 60) if node.dry_run else ends - time.monotonic()
        outcome = _skipped(check, node, stopped, gpus, seconds) or run(check, node, seconds)
        if outcome.status != PASS and not (node.dry_run and check.name == "driver"):
            stopped.add(check.name)
        if check.name == "driver" and outcome.status == PASS:
            gpus = int(outcome.number or 0)
        yield check, outcome


def _skipped(check: Check, node: Node, stopped: set[str], gpus: int, seconds: float) -> Outcome | None:
    """Why the check is not run, if anything says so."""
    if failed := [name for name in check.needs if name in stopped]:
        return Outcome(SKIPPED, reason=f"says nothing without {failed[0]}")
    if node.dry_run and check.gpus > 1:
        return Outcome(SKIPPED, reason=f"needs {check.gpus} GPUs")
    if not node.dry_run and gpus < check.gpus:
        return Outcome(SKIPPED, reason=f"needs {check.gpus} GPUs, PyTorch sees {gpus}")
    if seconds < (check.seconds / 2 or LEAST):  # an earlier one was slow to end
        return Outcome(SKIPPED, reason=f"no time is left of the {MINUTES} minutes: --checks {check.name}")
    return None


def run_in_a_process(check: Check, node: Node, seconds: float) -> Outcome:
    """A check in a process that leaves nothing behind, whatever becomes of it; its output is NAME.log in the node's folder."""
    log, result = node.folder / f"{check.name}.check.log", node.folder / f"{check.name}.json"
    result.unlink(missing_ok=True)
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, ROOT / "eval/on_gpu.py", "--child", check.name, "--output", node.folder]
    if node.dry_run:
        command.append("--dry-run")
        if not STACK.exists() or not check.number:  # which do without OpenRLHF
            environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        else:
            command = ["bash", ROOT / "train_scripts/on_cpu.sh", STACK.name, "python", *command[1:]]
    start = time.monotonic()
    with started(command, log, environment) as process:
        try:
            code = process.wait(seconds)
        except TimeoutExpired:
            code = None
    took = time.monotonic() - start
    if code is None:
        return Outcome(FAIL, reason=f"has not ended in {seconds:.0f} s", seconds=took)
    try:
        return replace(Outcome(**json.loads(result.read_text())), seconds=took)
    except (OSError, ValueError, TypeError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return Outcome(
            FAIL, reason=for_strangers(f"ended with code {code}: {lines[-1] if lines else ''}"), seconds=took
        )


def run_here(name: str, node: Node) -> None:
    """In a check's own process: run it, and write its outcome."""
    (check,) = [check for check in CHECKS if check.name == name]
    try:
        outcome = check.run(node)
    except NotHere as here:
        outcome = Outcome(SKIPPED, reason=str(here))
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        outcome = Outcome(FAIL, reason=f"{type(error).__name__}: {error}")
    text = json.dumps(asdict(replace(outcome, reason=for_strangers(outcome.reason))))
    (node.folder / f"{name}.json").write_text(text)

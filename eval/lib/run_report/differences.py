"""What the arms differ in besides their results, as far as the runs kept it: flags, versions, launch.sh's variables."""

import shlex

from lib.run_report.content import Section, Table
from lib.run_report.measured import Arm

from openrlhf_sagc.redaction import HIDDEN, command_line

# Flags of the scheduler, of the faster step and of places on disk: what one compares, or what changes no result.
SCHEDULER = tuple(
    "rollout.sagc. rollout.tail_batching. rollout.length_aware_dispatch rollout.trace algo.dynamic_filtering_ "
    "train.stream train.old_log_probs train.micro_batches reward.timeout reward.retries reward.max_failure".split()
)
PLACES = ("ckpt.", "logger.")
NONE = "–"  # a command that lacks the flag, as one without this package does: no other setting
OFF = {NONE, "None", "False", "{}"}  # alike


def section(arms: list[Arm]) -> Section:
    """Tables of the flags and versions in which arms differ, with a warning where that is more than the scheduler."""
    kept = {
        arm.name: [run.kept for run in arm.runs if run.kept.get("flags") or run.kept.get("versions")] for arm in arms
    }
    if all(run.kept.get("comparison") for arm in arms for run in arm.runs):
        return Section(
            "What differs", ["The arms are policies of eval/compare.py, whose names say what they differ in."]
        )
    unknown = [name for name, runs in kept.items() if not runs]
    blocks: list = []
    if unknown and len(arms) > 1:
        blocks.append(
            f"Flags and versions of {', '.join(unknown)} are not known: launch.sh and python -m openrlhf_sagc keep "
            "them in --ckpt.output_dir, in run.jsonl. So nothing here says whether the arms differ in more than the "
            "scheduler."
        )
    named = {name: runs for name, runs in kept.items() if runs}
    flags = _differing(named, "flags")
    flags = {name: cells for name, cells in flags.items() if not ({*cells} <= OFF or name.startswith(PLACES))}
    more = [name for name, cells in flags.items() if NONE not in cells and not name.startswith(SCHEDULER)]
    if more and len(named) > 1:
        shown = ", ".join(f"--{name}" for name in more[:8]) + (f" and {len(more) - 8} more" if len(more) > 8 else "")
        blocks.append(f"Warning: the arms differ in more than the scheduler: {shown}.")
    rows = [[f"--{name}", *flags[name]] for name in sorted(flags, key=more.__contains__, reverse=True)]
    rows += [[name, *cells] for what in ("versions", "launch") for name, cells in _differing(named, what).items()]
    if rows:
        blocks.append(Table(["", *named], rows, "l" * (1 + len(named))))
    elif len(named) > 1:
        blocks.append("The arms have the same flags and versions.")
    commands = [[name, _command(runs[0]["command"])] for name, runs in named.items() if runs[0].get("command")]
    if commands:
        blocks.append(Table(["arm", "command"], commands, "ll"))
    return Section("What differs", blocks or ["One arm, nothing to compare with."])


def _command(kept: str) -> str:
    try:
        return command_line(shlex.split(kept))
    except ValueError:  # cut
        return HIDDEN


def _differing(named: dict[str, list[dict]], what: str) -> dict[str, list[str]]:
    """name -> the arms' values, of what differs between arms or between the runs of one."""
    names = dict.fromkeys(name for runs in named.values() for run in runs for name in run.get(what, {}))
    found = {}
    for name in names:
        cells = [sorted({str(run.get(what, {}).get(name, NONE)) for run in runs}) for runs in named.values()]
        if len({*map(tuple, cells)}) > 1 or any(len(cell) > 1 for cell in cells) and name != "train.seed":
            found[name] = [", ".join(cell) for cell in cells]
    return found

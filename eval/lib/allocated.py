"""Bytes that torch's allocator on the CPU has given out, also inside of an operation."""

from typing import Any, Callable

import torch


def allocated(function: Callable[[], Any]) -> tuple[int, int, Any]:
    """Run a function; bytes above those before, at the peak and at the end, and its result, which still has its own."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = function()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak, now, result

"""The trace that the advice is made of: whether it is enough, and what is to be said of it."""

from argparse import Namespace

import numpy as np
from lib.advice.switches import KNOWN_SHARE, known_sizes
from lib.advice.tail import signal_share
from lib.simulation.lengths import Trace

LEAST_PROMPTS = 50  # of a trace: with fewer the longest of a step is one of a handful, which no bootstrap varies
ROOM = 2  # times the groups of a step that --max_gen_batches has to allow at the trace's share of groups with a signal
DRIFT = 1.25  # ratio of median lengths of which is told


def read(arguments: Namespace) -> tuple[Trace, list[int]]:
    """The trace of --trace, and the group sizes of --group_sizes that it has groups of.

    Raises:
        ValueError: it is no trace, or too little for advice; the message is one line and says what would do.
    """
    path, n = arguments.trace, arguments.n_samples_per_prompt
    trace = Trace(path)
    counts_P = trace.samples_per_prompt
    if len(counts_P) < LEAST_PROMPTS:
        raise ValueError(
            f"--trace {path} has {len(counts_P)} prompts: too few to tell how much prompts differ, {LEAST_PROMPTS} or more "
            "would do"
        )
    sizes = known_sizes(
        trace, [*arguments.group_sizes, n], None if arguments.hold == "prompts" else arguments.batch_size * n
    )
    if n not in sizes:
        raise ValueError(
            f"--trace {path} has {n} rollouts of {(counts_P >= n).mean():.0%} of its prompts: too few to draw groups of "
            f"--n_samples_per_prompt {n} from, {KNOWN_SHARE:.0%} of the prompts would do"
        )
    return trace, sizes


def can_filter(trace: Trace, arguments: Namespace) -> bool:
    """Whether the trace says which rollouts are correct, and dynamic sampling would fill its steps with room to spare."""
    share = signal_share(trace, arguments.n_samples_per_prompt)
    return share is not None and share * arguments.max_gen_batches >= ROOM


def doubts(trace: Trace, sizes: list[int], arguments: Namespace) -> list[str]:
    """What makes this trace tell less than it seems to, a line each."""
    lines, marks = [], trace.marks
    left_out = sorted(set(arguments.group_sizes) - set(sizes))
    if left_out:
        most = int(np.quantile(trace.samples_per_prompt, 1 - KNOWN_SHARE))
        lines.append(
            f"group sizes {', '.join(map(str, left_out))} are not tried: the trace has {most} rollouts of most prompts, or "
            "they do not divide a step"
        )
    if trace.has_correct and not can_filter(trace, arguments):
        share = signal_share(trace, arguments.n_samples_per_prompt)
        lines.append(
            f"dynamic sampling is not tried: {share:.0%} of the groups have a signal, too few for --max_gen_batches "
            f"{arguments.max_gen_batches}"
        )
    if marks.stopped:
        lines.append(
            f"{marks.stopped:.0%} of the rollouts were stopped or failed, their lengths are not known: the tail is longer "
            "than it seems"
        )
    if marks.truncated:
        lines.append(f"{marks.truncated:.1%} of the rollouts were cut off: the tail ends there in the replay as well")
    if marks.drift and not 1 / DRIFT < marks.drift < DRIFT:
        lines.append(
            f"median lengths were {marks.drift:.2g} times as long in the run's last third as in its first: all are mixed"
        )
    return lines

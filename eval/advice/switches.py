"""The switches that the advisor tries: each a policy of the simulator, and the flags of a training run that it is."""

from argparse import Namespace
from typing import NamedTuple

from simulation.flags import package_flags
from simulation.lengths import Trace

from openrlhf_sagc.argument_checks import FILTER, LENGTH_AWARE, PREFIX, TAIL, words

KNOWN_SHARE = 0.8  # of the prompts that must have as many rollouts as a group that is drawn from them


class Switch(NamedTuple):
    """`policy` is the simulator's word. `flags` are what a run adds; `dynamic_sampling` is whether the replay has it."""

    name: str
    policy: str
    flags: str
    dynamic_sampling: bool


def known_sizes(trace: Trace, sizes: list[int], samples: int | None) -> list[int]:
    """The group sizes of which the trace has groups, since most prompts have as many rollouts; in order.

    Sizes into which the `samples` of a step, if these are held, cannot be cut are left out.
    """
    fitting = {size for size in sizes if size > 1 and not (samples and samples % size)}
    return sorted(size for size in fitting if (trace.samples_per_prompt >= size).mean() >= KNOWN_SHARE)


def switches_of(arguments: Namespace, sizes: list[int], can_filter: bool) -> list[Switch]:
    """The run as it is, then every switch.

    Args:
        arguments: of advise.py.
        sizes: that the trace knows, with the run's own.
        can_filter: whether dynamic sampling can be replayed.
    """
    n, filtered = arguments.n_samples_per_prompt, arguments.dynamic_sampling
    tail = f"{TAIL}enable {TAIL}response_ratio 1{_changed(arguments, ['prompt_ratio'])}"
    control = f"{PREFIX}enable {PREFIX}group_sizes {words(sizes)}"
    control += _changed(
        arguments, ["straggler_ratio", "max_straggler_rate", "tradeoff", "discount", "hold", "objective", "signal"]
    )
    found = [Switch("as it is", f"fixed:{n}", "", filtered)]
    for size in sizes:
        flags, name = _size_flags(arguments, size), f"groups of {size}"
        if size != n:
            found.append(Switch(name, f"fixed:{size}", flags, filtered))
        both = name + " and tail batching" if size != n else "tail batching"
        found.append(Switch(both, f"fixed:{size}+tail:1", f"{flags} {tail}".strip(), filtered))
    if len(sizes) > 1:
        found.append(Switch("group control", "sagc", control, filtered))
        found.append(Switch("group control and tail batching", "sagc+tail:1", f"{control} {tail}", filtered))
    lengths = f"{PREFIX}enable {PREFIX}group_sizes {n} {LENGTH_AWARE}"
    found.append(Switch("length-aware dispatch", f"fixed:{n}+lengths", lengths, filtered))
    if can_filter and not filtered:
        alone = f"{PREFIX}enable {PREFIX}group_sizes {n}"
        filtering = f"{FILTER}enable{_changed(arguments, ['max_gen_batches'])}"
        found.append(Switch("dynamic sampling", f"fixed:{n}", f"{alone} {filtering}", True))
        found.append(Switch("dynamic sampling and tail batching", f"fixed:{n}+tail:1", f"{tail} {filtering}", True))
    return found


def _size_flags(arguments: Namespace, size: int) -> str:
    """OpenRLHF's own flags of a fixed size; empty for the run's."""
    n, prompts = arguments.n_samples_per_prompt, arguments.batch_size
    if size == n:
        return ""
    if arguments.hold == "samples":
        prompts = prompts * n // size
    return f"--rollout.n_samples_per_prompt {size} --rollout.batch_size {prompts}"


def _changed(arguments: Namespace, names: list[str]) -> str:
    """Flags of a switch that were given to advise.py, behind those of the switch."""
    flags = package_flags()
    changed = [name for name in names if name in flags and getattr(arguments, name) != flags[name].default]
    return "".join(f" --{flags[name].dest} {getattr(arguments, name)}" for name in changed)

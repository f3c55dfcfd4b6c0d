"""The switches that the advisor tries: each a policy of the simulator, and the flags of a training run that it is."""

from argparse import Namespace
from typing import NamedTuple

from lib.simulation.flags import package_flags
from lib.simulation.lengths import Trace

from openrlhf_sagc.config.refusal import FILTER, LENGTH_AWARE, PREFIX, TAIL, words

BATCHED = "+tail"  # of a policy with tail batching
WITHOUT_TAIL = f"(without {TAIL}enable)"  # in the place of flags, for a run that has it
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
    n, filtered, has_tail = arguments.n_samples_per_prompt, arguments.dynamic_sampling, arguments.tail_batching
    tail = f"{TAIL}enable{_changed(arguments, ['prompt_ratio'])}"
    control = f"{PREFIX}enable {PREFIX}group_sizes {words(sizes)}"
    control += _changed(
        arguments, ["straggler_ratio", "max_straggler_rate", "tradeoff", "discount", "hold", "objective", "signal"]
    )
    filtering = f"{FILTER}enable{_changed(arguments, ['max_gen_batches'])}"
    ways = [("", f"fixed:{n}", "", filtered)]  # name, policy, flags, dynamic sampling
    others = [size for size in sizes if size != n]
    ways += [(f"groups of {size}", f"fixed:{size}", _size_flags(arguments, size), filtered) for size in others]
    if len(sizes) > 1:
        ways.append(("group control", "sagc", control, filtered))
    ways.append(("placed rollouts", f"fixed:{n}+lengths", LENGTH_AWARE, filtered))
    if can_filter and not filtered:
        ways.append(("dynamic sampling", f"fixed:{n}", filtering, True))
    found = []
    for name, policy, flags, filters in ways:
        found.append(Switch(name or "as it is", policy + BATCHED * has_tail, flags, filters))
        if name == "placed rollouts" or (has_tail and filters > filtered):
            continue
        if has_tail:
            other = f"{name} without tail batching" if name else "no tail batching"
            found.append(Switch(other, policy, f"{flags} {WITHOUT_TAIL}".strip(), filters))
        else:
            other = f"{name} and tail batching" if name else "tail batching"
            found.append(Switch(other, policy + BATCHED, f"{flags} {tail}".strip(), filters))
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

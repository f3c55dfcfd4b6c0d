"""Group sizes, training batches and ranks share the samples of a step; where they cannot, what is nearest."""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from openrlhf_sagc.config.layout import data_parallel_actors, fewest_samples, forward_ranks, samples_per_step
from openrlhf_sagc.config.refusal import PREFIX, refusal, words
from openrlhf_sagc.config.settings import Settings

FARTHEST = 10_000  # prompts that advice adds at most


def check_batch(args: Settings, off: str) -> None:
    """Group sizes, training batches and ranks fit.

    Args:
        off: what a line adds where OpenRLHF itself runs the script.

    Raises:
        SystemExit: they do not; the message is one line.
    """
    for problem, advice in _problems(args):
        raise refusal(f"{problem}: {advice or _advice(args)}{off if problem.startswith('--train.batch_size') else ''}")


def batch_flags(args: SimpleNamespace, changes: dict[str, Any], prompts: int | None = None) -> list[str]:
    """The flags --rollout.batch_size and --train.batch_size that a run still needs.

    Args:
        args: OpenRLHF's; without this package's flags the batches are what they are.
        changes: the run's other new values, by the flags' names without their dashes.
        prompts: those of a step, if they are to be others than given.
    """
    old = args.rollout.batch_size
    settings = Settings.of(args).with_values(changes | {"rollout.batch_size": old if prompts is None else prompts})
    fitting = {"rollout.batch_size": settings.rollout.batch_size, "train.batch_size": args.train.batch_size}
    if hasattr(args.rollout, "sagc") and next(_problems(settings), None):
        fitting = _nearest(settings) or fitting
    given = {"rollout.batch_size": old, "train.batch_size": args.train.batch_size}
    return [f"--{name} {number}" for name, number in fitting.items() if number != given[name]]


def _advice(args: Settings) -> str:
    flags = batch_flags(args, {})
    return f"use {' '.join(flags)}" if flags else "use other numbers of prompts, samples or GPUs"


def _nearest(args: Settings) -> dict[str, int] | None:
    """Numbers of prompts and of samples in a training batch that fit all else, as near as possible; None if there are none."""
    prompts, batch, size = args.rollout.batch_size, args.train.batch_size, args.rollout.n_samples_per_prompt
    unit = data_parallel_actors(args) * (1 if args.train.dynamic_batch_enable else args.train.micro_batch_size)
    together = unit if args.rollout.sagc.hold == "prompts" else math.lcm(unit, *_sizes(args))  # divides the samples
    for distance in range(min(together, FARTHEST) + 1):
        for near in dict.fromkeys((prompts + distance, prompts - distance)):
            samples = near * size
            if near < 1 or samples % together:
                continue
            batches = (part for part in range(unit, samples + 1, unit) if samples % part == 0)
            fitting = {
                "rollout.batch_size": near,
                "train.batch_size": min(batches, key=lambda part: abs(part - batch)),
            }
            if next(_problems(args.with_values(fitting)), None) is None:
                return fitting
    return None


def _sizes(args: Settings) -> list[int]:
    """Group sizes that a step can have."""
    sagc = args.rollout.sagc
    return sagc.group_sizes if sagc.enable else [args.rollout.n_samples_per_prompt]


def _problems(args: Settings) -> Iterator[tuple[str, str]]:
    """(what does not fit, what would; empty where other batches would)."""
    samples, product = samples_per_step(args)
    sizes, hold, batch_size = _sizes(args), args.rollout.sagc.hold, args.train.batch_size
    wrong = [size for size in sizes if samples % size]
    fitting = [size for size in range(2, min(samples, max(sizes) * 2) + 1) if samples % size == 0]
    if wrong and hold == "samples":
        yield (
            f"{PREFIX}group_sizes {words(wrong)} does not divide the {samples} samples of a step ({product})",
            f"sizes that do are {words(fitting)}",
        )
    if samples % batch_size:
        yield f"--train.batch_size {batch_size} does not divide the {samples} samples of a step ({product})", ""
    ranks = data_parallel_actors(args)
    fewest = min(min(_samples_of_steps(args, size)) for size in sizes)
    smallest = (
        f"the smallest of {PREFIX}group_sizes, {min(sizes)}," if args.rollout.sagc.enable else f"groups of {sizes[0]}"
    )
    if fewest < ranks:
        yield (
            f"--rollout.batch_size {args.rollout.batch_size} and {smallest} can give only {fewest} samples to {ranks} "
            "data-parallel actors",
            "",
        )
    if batch_size % ranks:
        yield f"{ranks} data-parallel actors do not divide --train.batch_size {batch_size}", ""
    micro_batch = args.train.micro_batch_size
    if not args.train.dynamic_batch_enable and batch_size % (micro_batch * ranks):
        yield (
            f"--train.micro_batch_size {micro_batch} x {ranks} data-parallel actors does not divide --train.batch_size {batch_size}",
            f"use a divisor of {batch_size // ranks}",
        )
    for size in sizes:
        yield from _problems_of_forward_passes(args, size)


def _problems_of_forward_passes(args: Settings, size: int) -> Iterator[tuple[str, str]]:
    """Every rank of every model has an even share of the smallest step at this group size."""
    fewest, needed = min(_samples_of_steps(args, size)), fewest_samples(args)
    ranks = (
        f"{ranks} of --{section}.num_gpus_per_node x --{section}.num_nodes"
        for section, ranks in forward_ranks(args).items()
    )
    if fewest < needed:
        yield (
            f"data-parallel ranks ({', '.join(ranks)}) share {needed} samples or more evenly, and a step at group size {size} can "
            f"have as few as {fewest}",
            f"use as many ranks as the actor has, {data_parallel_actors(args)}, or a divisor of that",
        )


def _samples_of_steps(args: Settings, size: int) -> range:
    """The numbers of samples that a step at this group size can have, if groups are kept from another size as well."""
    sizes, hold = _sizes(args), args.rollout.sagc.hold
    groups = args.rollout.batch_size if hold == "prompts" else samples_per_step(args)[0] // size
    kept = sizes if args.algo.dynamic_filtering_surplus == "keep" else [size]
    return range(groups * min(kept), groups * max(kept) + 1, math.gcd(*kept))

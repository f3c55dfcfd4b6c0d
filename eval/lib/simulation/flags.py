"""Training's flags in the simulator: the same names without their prefixes, and the arguments that a policy comes to."""

import argparse
from types import SimpleNamespace
from typing import Any

from lib.policies import Policy

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.refusal import FILTER, LENGTH_AWARE, MAX_AGE, PREFIX, TAIL
from openrlhf_sagc.policies import ANY_MEAN

FILTER_FLAGS = ("max_gen_batches",)


def training_flags() -> dict[str, argparse.Action]:
    """All flags of the package as training has them, by their names there."""
    training = argparse.ArgumentParser(add_help=False)
    add_arguments(training)
    return {f"--{action.dest}": action for action in training._actions}


def package_flags() -> dict[str, argparse.Action]:
    """The flags by their names here: of group control and tail batching all but the switches, which a policy's name sets."""
    flags = training_flags()
    taken = {FILTER + name: name for name in FILTER_FLAGS}
    for prefix in (PREFIX, TAIL):
        taken |= {flag: flag.removeprefix(prefix) for flag in flags if flag.startswith(prefix)}
    taken[MAX_AGE] = "max_age"
    return {name: flags[flag] for flag, name in taken.items() if name not in ("enable", "method", "policy")}


def add_package_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags, with training's defaults."""
    for name, action in package_flags().items():
        options = {"type": action.type, "nargs": action.nargs, "choices": action.choices, "default": action.default}
        parser.add_argument(f"--{name}", help=action.help, **options)


def default_arguments(**others: Any) -> argparse.Namespace:
    """The flags with training's defaults, but for `others`, which may be more than these flags."""
    parser = argparse.ArgumentParser()
    add_package_flags(parser)
    return argparse.Namespace(**vars(parser.parse_args([])) | others)


def sizes_of(policy: Policy, arguments: argparse.Namespace) -> tuple[list[int], int]:
    """The group sizes that the policy chooses from, and the size of the first step."""
    if policy.size is not None or policy.pool:
        size = policy.size or arguments.n_samples_per_prompt
        return [size], size
    return arguments.group_sizes, arguments.n_samples_per_prompt


def training_arguments(policy: Policy, arguments: argparse.Namespace) -> SimpleNamespace:
    """The arguments of a training run with this policy, for `build_planner`.

    A fixed size has as many prompts as make up the samples of --batch_size x --n_samples_per_prompt, or --batch_size
    prompts where those are held.
    """
    sizes, initial = sizes_of(policy, arguments)
    hold = policy.hold or arguments.hold
    prompts, samples = arguments.batch_size, arguments.batch_size * arguments.n_samples_per_prompt
    flags = {flag: action.default for flag, action in training_flags().items()}
    flags |= {f"--{action.dest}": getattr(arguments, name) for name, action in package_flags().items()}
    flags |= {
        PREFIX + "group_sizes": sizes,
        PREFIX + "policy": policy.own,
        PREFIX + "hold": hold,
        TAIL + "enable": policy.tail is not None,
        TAIL + "method": policy.tail or "auto",
        LENGTH_AWARE: policy.lengths,
        FILTER + "enable": arguments.dynamic_sampling,
        FILTER + "range": ANY_MEAN,
        "--rollout.pool": policy.pool and policy.pool * prompts,
        "--train.num_episodes": 10**9,
        "--actor.loss_agg_mode": "token-mean",
        "--actor.policy_loss_type": "ppo",
        "--train.seed": getattr(arguments, "seed", 0),
        "--rollout.n_samples_per_prompt": initial,
        "--rollout.batch_size": samples // initial if hold == "samples" else prompts,
    }
    if policy.response_ratio is not None:
        flags[TAIL + "response_ratio"] = policy.response_ratio
    return nested(flags)


def nested(flags: dict[str, Any]) -> SimpleNamespace:
    """Values by flag as OpenRLHF nests them, by the dots in their names."""
    root = SimpleNamespace()
    for flag, value in flags.items():
        *sections, name = flag.removeprefix("--").split(".")
        place = root
        for section in sections:
            place = vars(place).setdefault(section, SimpleNamespace())
        setattr(place, name, value)
    return root

"""The flags: --rollout.sagc.*, tail batching, dynamic sampling and rewards; their checks, what switching them on changes.

`python -m openrlhf_sagc` calls `add_arguments` and `check_arguments` around OpenRLHF's own. Everything is checked
in the driver before Ray starts; an error is one line that names the flag, the value and what would work.
"""

import argparse
import operator
from types import SimpleNamespace

from openrlhf_sagc.argument_checks import (
    FILTER,
    LENGTH_AWARE,
    PREFIX,
    REWARD,
    TAIL,
    check_batch,
    check_modes,
    check_prompts,
    check_reward,
    samples_per_step,
    words,
)
from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.dynamic_sampling import DynamicSampler
from openrlhf_sagc.tail_batching import TailBatcher

ANY_MEAN = (0, 1)  # OpenRLHF's default of the filter's range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("straggler-aware group control (openrlhf_sagc)")
    group.add_argument(
        PREFIX + "enable",
        action="store_true",
        help="choose the group size before every step; n_samples_per_prompt is the first step's",
    )
    group.add_argument(
        PREFIX + "group_sizes",
        type=int,
        nargs="*",
        default=[4, 8, 16, 32],
        help="candidates (samples per prompt); a single one is a fixed size with all the metrics",
    )
    group.add_argument(
        PREFIX + "straggler_ratio",
        type=float,
        default=2.5,
        help="a group has a straggler event when its longest rollout reaches this multiple of its median",
    )
    group.add_argument(
        PREFIX + "max_straggler_rate",
        type=float,
        default=0.2,
        help="limit of the long-term share of groups with an event",
    )
    group.add_argument(
        PREFIX + "tradeoff",
        type=float,
        default=2.0,
        help="weight of large groups against the limit; smaller follows the limit sooner",
    )
    group.add_argument(
        PREFIX + "discount", type=float, default=0.98, help="per-step fading of the evidence on the hazard"
    )
    group.add_argument(
        PREFIX + "hold",
        choices=("samples", "prompts"),
        default="samples",
        help="a step keeps batch_size x n_samples_per_prompt samples (smaller groups: more prompts), or its prompts",
    )
    group.add_argument(
        PREFIX + "signal",
        choices=("tokens", "seconds"),
        default="tokens",
        help="a rollout's length: response tokens, or seconds in the engine with tools, without vLLM's queue",
    )
    group = parser.add_argument_group("tail batching (openrlhf_sagc)")
    group.add_argument(
        TAIL + "enable",
        action="store_true",
        help="close a step with the first groups done, other prompts wait for a long round; also without sagc.enable",
    )
    group.add_argument(
        TAIL + "prompt_ratio", type=float, default=1.25, help="prompts dispatched in a short round over those needed"
    )
    group.add_argument(
        TAIL + "response_ratio",
        type=float,
        default=1.25,
        help="rollouts dispatched a prompt in a short round over the group size; above 1 it selects short responses",
    )
    group.add_argument(
        LENGTH_AWARE,
        action="store_true",
        help="balance engines by the tokens expected from a prompt's earlier rollouts, long prompts first",
    )
    group = parser.add_argument_group(
        "dynamic sampling and rewards, with group control or tail batching (openrlhf_sagc)"
    )
    group.add_argument(
        FILTER + "tolerance", type=float, default=1e-6, help="scores that differ by at most this are equal"
    )
    group.add_argument(
        FILTER + "max_gen_batches",
        type=int,
        default=10,
        help="a step dispatches at most this many times the groups it needs",
    )
    group.add_argument(
        FILTER + "at_cap",
        choices=("fail", "keep"),
        default="fail",
        help="where that is not enough: end the run, or keep what there is and train on it",
    )
    group.add_argument(
        FILTER + "surplus",
        choices=("discard", "keep"),
        default="discard",
        help="groups beyond a step's need: roll their prompts out again, or keep them and train them one update late",
    )
    group.add_argument(
        REWARD + "timeout", type=float, default=180.0, help="seconds for one attempt at a sample's reward"
    )
    group.add_argument(REWARD + "retries", type=int, default=2, help="further attempts where it failed")
    group.add_argument(
        REWARD + "max_failure_share",
        type=float,
        default=0.1,
        help="the run ends past this share of a step's dispatched samples without a reward; below, their groups are dropped",
    )
    for action in parser._actions:
        if action.dest == "algo.advantage.estimator":
            action.choices = [*(action.choices or ()), "median"]


def check_arguments(args: SimpleNamespace) -> None:
    """Check the flags against the run's.

    Args:
        args: OpenRLHF's arguments, nested by the dots in their names.

    Raises:
        SystemExit: a flag cannot work; the message is one line.
    """
    if not enabled(args):
        return _refuse_idle_flags(args)
    if not args.rollout.sagc.enable:
        if args.rollout.n_samples_per_prompt < 2:
            raise SystemExit(
                f"openrlhf_sagc: --rollout.n_samples_per_prompt {args.rollout.n_samples_per_prompt} is the group size of "
                f"{TAIL}enable: use 2 or more"
            )
        args.rollout.sagc.group_sizes = [args.rollout.n_samples_per_prompt]
    builds = ((PREFIX, build_controller), (FILTER, build_sampler), (TAIL, build_batcher), (REWARD, check_reward))
    for prefix, build in builds:
        try:
            build(args)
        except ValueError as error:
            raise SystemExit(f"openrlhf_sagc: {prefix}{error}") from None
    check_modes(args)
    check_batch(args)
    check_prompts(args)
    print(f"openrlhf_sagc: {describe(args)}")


def enabled(args: SimpleNamespace) -> bool:
    """Whether this package's scheduler rolls out; without it a run is OpenRLHF's."""
    return args.rollout.sagc.enable or args.rollout.tail_batching.enable


def build_controller(args: SimpleNamespace) -> StragglerAwareGroupController:
    """The controller that the flags describe; its first size is n_samples_per_prompt.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    flags = args.rollout.sagc
    if flags.group_sizes and args.rollout.n_samples_per_prompt not in flags.group_sizes:
        raise ValueError(
            f"group_sizes {words(flags.group_sizes)} do not hold --rollout.n_samples_per_prompt "
            f"{args.rollout.n_samples_per_prompt}, the size of the first step: add it or set it to one of them"
        )
    return StragglerAwareGroupController(
        group_sizes=flags.group_sizes,
        straggler_ratio=flags.straggler_ratio,
        max_straggler_rate=flags.max_straggler_rate,
        tradeoff=flags.tradeoff,
        discount=flags.discount,
        initial_group_size=args.rollout.n_samples_per_prompt,
    )


def build_sampler(args: SimpleNamespace) -> DynamicSampler:
    """The dynamic sampler that the flags describe; without --algo.dynamic_filtering_enable it keeps what has a reward.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    algo = args.algo
    return DynamicSampler(
        tolerance=algo.dynamic_filtering_tolerance if algo.dynamic_filtering_enable else None,
        score_range=tuple(algo.dynamic_filtering_range),
        check_range=tuple(algo.dynamic_filtering_range) != ANY_MEAN,
        max_gen_batches=algo.dynamic_filtering_max_gen_batches,
    )


def build_batcher(args: SimpleNamespace) -> TailBatcher | None:
    """The tail batcher that the flags describe; None without --rollout.tail_batching.enable.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    flags = args.rollout.tail_batching
    if not flags.enable:
        return None
    return TailBatcher(prompt_ratio=flags.prompt_ratio, response_ratio=flags.response_ratio)


def describe(args: SimpleNamespace) -> str:
    """What the flags come to, in words, for the start of a run."""
    flags = args.rollout.sagc
    sizes = sorted(set(flags.group_sizes))
    samples, product = samples_per_step(args)
    if flags.hold == "samples":
        combinations = ", ".join(f"{samples // size} x {size}" for size in sizes)
        held = f"every step has {samples} samples ({product}), as prompts x group size {combinations}"
    else:
        combinations = ", ".join(f"{size} = {args.rollout.batch_size * size}" for size in sizes)
        held = f"every step has {args.rollout.batch_size} prompts (--rollout.batch_size), at group size {combinations} samples"
    unit = "response tokens" if flags.signal == "tokens" else "seconds"
    steps = (
        f"at most {samples // args.train.batch_size} optimizer step(s) a rollout and epoch, and the learning rate "
        "follows the prompts used"
    )
    control = (
        f"; the first size is {args.rollout.n_samples_per_prompt}, each next one the largest that pays while in the long "
        f"run at most {100 * flags.max_straggler_rate:g} % of the groups have a straggler, a rollout of "
        f"{flags.straggler_ratio:g} times the group's median {unit}"
    )
    tail = args.rollout.tail_batching
    rounds = (
        f"; short rounds dispatch {tail.prompt_ratio:g} times the prompts and {tail.response_ratio:g} times the rollouts "
        "a prompt, and the prompts they leave behind are run to the end in long rounds"
    )
    if len(sizes) > 1 and tail.response_ratio > 1:
        rounds += (
            f"; {TAIL}response_ratio {tail.response_ratio:g} stops stragglers before they count, so that large groups are "
            "chosen: 1 leaves them to the limit"
        )
    return f"{held}{control if len(sizes) > 1 else ''}{rounds if tail.enable else ''}; {steps}"


def _refuse_idle_flags(args: SimpleNamespace) -> None:
    """A cap or a retry that one relies on must not be missing; the rest of --rollout.sagc.* is off with its switch."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, default in vars(parser.parse_args([])).items():
        value = operator.attrgetter(name)(args)
        if value != default and not name.startswith(("rollout.sagc.", "rollout.tail_batching.")):
            raise SystemExit(
                f"openrlhf_sagc: --{name} {value} does nothing without {PREFIX}enable or {TAIL}enable: add one of them "
                "or drop this one"
            )
    if args.algo.advantage.estimator == "median":
        raise SystemExit(
            f"openrlhf_sagc: --algo.advantage.estimator median needs {PREFIX}enable or {TAIL}enable: use group_norm, "
            "dr_grpo, rloo or reinforce_baseline"
        )

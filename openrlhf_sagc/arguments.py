"""The flags: --rollout.sagc.*, dynamic sampling and rewards; their checks and what switching them on changes.

OpenRLHF calls `add_arguments` and `check_arguments` through the "openrlhf.plugins" entry point. Everything is checked
in the driver before Ray starts; an error is one line that names the flag, the value and what would work.
"""

import argparse
import math
import operator
from types import SimpleNamespace

from openrlhf_sagc.advantages import GROUP_ESTIMATORS
from openrlhf_sagc.controller import StragglerAwareGroupController
from openrlhf_sagc.dynamic_sampling import DynamicSampler

PREFIX = "--rollout.sagc."
FILTER = "--algo.dynamic_filtering_"
REWARD = "--reward."
ANY_MEAN = (0, 1)  # OpenRLHF's default of the filter's range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("straggler-aware group control (openrlhf_sagc)")
    group.add_argument(
        PREFIX + "enable",
        action="store_true",
        help="choose the samples per prompt online; n_samples_per_prompt is the first step's",
    )
    group.add_argument(
        PREFIX + "group_sizes",
        type=int,
        nargs="*",
        default=[4, 8, 16, 32],
        help="candidate group sizes; with --rollout.sagc.hold samples each divides batch_size * n_samples_per_prompt",
    )
    group.add_argument(
        PREFIX + "straggler_ratio",
        type=float,
        default=2.5,
        help="a group has a straggler event when its longest rollout reaches this multiple of its median",
    )
    group.add_argument(
        PREFIX + "max_straggler_rate", type=float, default=0.2, help="limit of the long-term share of such groups"
    )
    group.add_argument(
        PREFIX + "tradeoff", type=float, default=2.0, help="weight of large groups against the queue of violations"
    )
    group.add_argument(
        PREFIX + "discount", type=float, default=0.98, help="per-step fading of the evidence on the straggler hazard"
    )
    group.add_argument(
        PREFIX + "hold",
        choices=("samples", "prompts"),
        default="samples",
        help="what a step keeps at every group size: batch_size * n_samples_per_prompt samples, or batch_size prompts",
    )
    group.add_argument(
        PREFIX + "signal",
        choices=("tokens", "seconds"),
        default="tokens",
        help="what a rollout's length is: its response tokens, or its seconds in the engine without vLLM's queue",
    )
    group = parser.add_argument_group("dynamic sampling and rewards, with --rollout.sagc.enable (openrlhf_sagc)")
    group.add_argument(
        FILTER + "tolerance",
        type=float,
        default=1e-6,
        help="drop groups whose scores differ by at most this; --algo.dynamic_filtering_range counts as well if given",
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
        help="where that is not enough: end the run, or train on the groups that there are",
    )
    group.add_argument(
        FILTER + "surplus",
        choices=("discard", "keep"),
        default="discard",
        help="groups beyond a step's need and rollouts that still run: stop them and roll their prompts out again later, "
        "or keep them for the next step, which trains them one update late",
    )
    group.add_argument(
        REWARD + "timeout", type=float, default=180.0, help="seconds for one attempt at a sample's reward"
    )
    group.add_argument(REWARD + "retries", type=int, default=2, help="further attempts where it failed")
    group.add_argument(
        REWARD + "max_failure_share",
        type=float,
        default=0.1,
        help="groups with a sample without a reward are dropped; past this share of a step's samples the run ends",
    )
    for action in parser._actions:
        if action.dest == "algo.advantage.estimator":
            action.choices = [*action.choices, "median"]


def check_arguments(args: SimpleNamespace) -> None:
    """Check the flags against the run's and switch the scheduler on, with --rollout.sagc.enable.

    Args:
        args: OpenRLHF's arguments, nested by the dots in their names.

    Raises:
        SystemExit: a flag cannot work; the message is one line.
    """
    if not args.rollout.sagc.enable:
        return _refuse_idle_flags(args)
    for prefix, build in ((PREFIX, build_controller), (FILTER, build_sampler), (REWARD, _check_reward)):
        try:
            build(args)
        except ValueError as error:
            raise SystemExit(f"openrlhf_sagc: {prefix}{error}") from None
    _check_modes(args)
    _check_batch(args)
    _check_prompts(args)
    print(f"openrlhf_sagc: {describe(args)}")
    args.rollout.samples_generator = "openrlhf_sagc.rollout:StragglerAwareSamplesGenerator"
    args.rollout.experience_maker = "openrlhf_sagc.experience:GroupExperienceMaker"


def build_controller(args: SimpleNamespace) -> StragglerAwareGroupController:
    """The controller that the flags describe; its first size is n_samples_per_prompt.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    flags = args.rollout.sagc
    if flags.group_sizes and args.rollout.n_samples_per_prompt not in flags.group_sizes:
        raise ValueError(
            f"group_sizes {_words(flags.group_sizes)} do not hold --rollout.n_samples_per_prompt "
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


def data_parallel_actors(args: SimpleNamespace) -> int:
    """Ranks that share the samples of a step."""
    actors = args.actor.num_nodes * args.actor.num_gpus_per_node
    return max(actors // (args.ds.ring_attn_size * args.ds.tensor_parallel_size), 1)


def describe(args: SimpleNamespace) -> str:
    """What the flags come to, in words, for the start of a run."""
    flags = args.rollout.sagc
    sizes = sorted(set(flags.group_sizes))
    samples, product = _samples_per_step(args)
    if flags.hold == "samples":
        combinations = ", ".join(f"{samples // size} x {size}" for size in sizes)
        held = f"every step has {samples} samples ({product}), as prompts x group size {combinations}"
    else:
        combinations = ", ".join(f"{size} = {args.rollout.batch_size * size}" for size in sizes)
        held = f"every step has {args.rollout.batch_size} prompts (--rollout.batch_size), at group size {combinations} samples"
    unit = "response tokens" if flags.signal == "tokens" else "seconds"
    return (
        f"{held}; the first size is {args.rollout.n_samples_per_prompt}, each next one the largest that pays while in "
        f"the long run at most {100 * flags.max_straggler_rate:g} % of the groups have a straggler, a rollout of "
        f"{flags.straggler_ratio:g} times the group's median {unit}; at most {samples // args.train.batch_size} optimizer "
        f"step(s) a rollout and epoch, and the learning rate follows the prompts used"
    )


def _words(sizes: list[int]) -> str:
    return " ".join(map(str, sizes))


def _samples_per_step(args: SimpleNamespace) -> tuple[int, str]:
    batch_size, n_samples = args.rollout.batch_size, args.rollout.n_samples_per_prompt
    return batch_size * n_samples, f"--rollout.batch_size {batch_size} x --rollout.n_samples_per_prompt {n_samples}"


def _check_batch(args: SimpleNamespace) -> None:
    samples, product = _samples_per_step(args)
    sizes = args.rollout.sagc.group_sizes
    wrong = [size for size in sizes if samples % size]
    if wrong and args.rollout.sagc.hold == "samples":
        fitting = [size for size in range(2, min(samples, max(sizes) * 2) + 1) if samples % size == 0]
        raise SystemExit(
            f"openrlhf_sagc: {PREFIX}group_sizes {_words(wrong)} does not divide the {samples} samples of a step "
            f"({product}): sizes that do are {_words(fitting)}"
        )
    if samples % args.train.batch_size:
        raise SystemExit(
            f"openrlhf_sagc: --train.batch_size {args.train.batch_size} does not divide the {samples} samples of a "
            f"step ({product}): use {samples} or a divisor of it"
        )
    ranks = data_parallel_actors(args)
    fewest = args.rollout.batch_size * min(sizes) if args.rollout.sagc.hold == "prompts" else samples
    if fewest < ranks:
        raise SystemExit(
            f"openrlhf_sagc: --rollout.batch_size {args.rollout.batch_size} x the smallest of {PREFIX}group_sizes, "
            f"{min(sizes)}, gives {fewest} samples to {ranks} data-parallel actors: raise either until there is one each"
        )
    if args.train.batch_size % ranks:
        raise SystemExit(
            f"openrlhf_sagc: {ranks} data-parallel actors do not divide --train.batch_size {args.train.batch_size}: "
            f"use a multiple of {ranks}"
        )
    micro_batch = args.train.micro_batch_size
    if not args.train.dynamic_batch_enable and args.train.batch_size % (micro_batch * ranks):
        raise SystemExit(
            f"openrlhf_sagc: --train.micro_batch_size {micro_batch} x {ranks} data-parallel actors does not divide "
            f"--train.batch_size {args.train.batch_size}: use a divisor of {args.train.batch_size // ranks}"
        )


def _refuse_idle_flags(args: SimpleNamespace) -> None:
    """A cap or a retry that one relies on must not be missing; the rest of --rollout.sagc.* is off with its switch."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, default in vars(parser.parse_args([])).items():
        value = operator.attrgetter(name)(args)
        if value != default and not name.startswith("rollout.sagc."):
            raise SystemExit(
                f"openrlhf_sagc: --{name} {value} does nothing without {PREFIX}enable: add that flag or drop this one"
            )
    if args.algo.advantage.estimator == "median":
        raise SystemExit(
            f"openrlhf_sagc: --algo.advantage.estimator median needs {PREFIX}enable: add that flag or use group_norm, "
            "dr_grpo, rloo or reinforce_baseline"
        )


def _check_reward(args: SimpleNamespace) -> None:
    reward = args.reward
    if not 0 < reward.timeout < math.inf:
        raise ValueError(f"timeout must be a number of seconds above 0, got {reward.timeout}")
    if reward.retries < 0:
        raise ValueError(f"retries must be at least 0, got {reward.retries}")
    if not 0 <= reward.max_failure_share <= 1:
        raise ValueError(f"max_failure_share must lie between 0 and 1, got {reward.max_failure_share}")


def _check_modes(args: SimpleNamespace) -> None:
    rollout = args.rollout
    if args.algo.dynamic_filtering_surplus == "keep" and args.vllm.enable_sleep:
        raise SystemExit(
            f"openrlhf_sagc: {FILTER}surplus keep does not work with --vllm.enable_sleep, which drops what vLLM is "
            f"generating: use {FILTER}surplus discard"
        )
    conflicts = [
        (
            rollout.vllm_generate_batch_size != rollout.batch_size,
            f"--rollout.vllm_generate_batch_size {rollout.vllm_generate_batch_size}",
        ),
    ]
    for name in ("samples_generator", "experience_maker"):
        value = getattr(rollout, name)
        conflicts.append((not value.startswith("openrlhf."), f"--rollout.{name} {value}"))
    for conflict, flag in conflicts:
        if conflict:
            raise SystemExit(f"openrlhf_sagc: --rollout.sagc.enable does not work with {flag}: drop one of them")
    estimator = args.algo.advantage.estimator
    if estimator not in GROUP_ESTIMATORS:
        raise SystemExit(
            f"openrlhf_sagc: --algo.advantage.estimator {estimator} has no groups whose size could be chosen: use "
            "group_norm, dr_grpo, rloo, reinforce_baseline or median"
        )
    if args.critic.freezing_steps >= 0:
        raise SystemExit(
            f"openrlhf_sagc: --critic.freezing_steps {args.critic.freezing_steps} holds the policy back while a critic "
            f"learns, and {estimator} has none: drop it"
        )
    if args.algo.advantage.gamma != 1:
        print(
            f"openrlhf_sagc: --algo.advantage.gamma {args.algo.advantage.gamma} is 1 for {estimator}, as in OpenRLHF"
        )


def _check_prompts(args: SimpleNamespace) -> None:
    samples, product = _samples_per_step(args)
    smallest = min(args.rollout.sagc.group_sizes)
    needed = samples // smallest if args.rollout.sagc.hold == "samples" else args.rollout.batch_size
    try:
        prompts = count_prompts(args)
    except Exception as error:
        raise SystemExit(
            f"openrlhf_sagc: --data.prompt_dataset {args.data.prompt_dataset} cannot be loaded: {_one_line(error)}"
        ) from error
    if prompts < needed:
        raise SystemExit(
            f"openrlhf_sagc: --data.prompt_dataset {args.data.prompt_dataset} gives {prompts} prompts (at most "
            f"--data.max_samples {args.data.max_samples}), fewer than the {needed} of a step at group size {smallest} "
            f"({product}, {PREFIX}hold {args.rollout.sagc.hold}): use more prompts, a smaller --rollout.batch_size or a "
            "larger smallest group size"
        )


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def count_prompts(args: SimpleNamespace) -> int:
    """Number of training prompts, counted the way OpenRLHF loads them."""
    from openrlhf.datasets.utils import blending_datasets

    quiet = SimpleNamespace(args=args, print=lambda *_: None, is_rank_0=lambda: False)
    data = blending_datasets(
        args.data.prompt_dataset,
        args.data.prompt_probs,
        quiet,
        args.train.seed,
        max_count=args.data.max_samples,
        dataset_split=args.data.prompt_split,
    )
    return min(args.data.max_samples, len(data))

"""The policies that the flags describe."""

import math

from openrlhf_sagc.config.checks import fitting_sizes
from openrlhf_sagc.config.layout import samples_per_step
from openrlhf_sagc.config.refusal import PREFIX, TAIL, words
from openrlhf_sagc.config.settings import Settings, predicts_lengths, prompt_ratio
from openrlhf_sagc.decisions.best_rounds import BestRounds
from openrlhf_sagc.decisions.controller import StragglerAwareGroupController
from openrlhf_sagc.decisions.dynamic_sampling import DynamicSampler
from openrlhf_sagc.decisions.length_prediction import LengthPredictor
from openrlhf_sagc.decisions.planner import Batcher, SizePolicy, StepPlanner
from openrlhf_sagc.decisions.pool import Pool
from openrlhf_sagc.decisions.sorted_steps import MOST_RATIO, SortedSteps
from openrlhf_sagc.decisions.step_model import StepModel
from openrlhf_sagc.decisions.tail_batching import NoTailBatching, TailBatcher
from openrlhf_sagc.decisions.token_weights import TokenWeights
from openrlhf_sagc.own_policies import OwnFilter, OwnSizePolicy

ANY_MEAN = (0, 1)  # OpenRLHF's default of the filter's range
SETTINGS = ("straggler_ratio", "max_straggler_rate", "tradeoff", "discount", "objective")  # of group control


def build_controller(args: Settings) -> SizePolicy:
    """The controller that the flags describe, whose first size is n_samples_per_prompt, or the policy that they name.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    flags = args.rollout.sagc
    if flags.group_sizes and args.rollout.n_samples_per_prompt not in flags.group_sizes:
        raise ValueError(
            f"group_sizes {words(flags.group_sizes)} do not hold --rollout.n_samples_per_prompt "
            f"{args.rollout.n_samples_per_prompt}, the size of the first step: add it, {PREFIX}group_sizes "
            f"{words(fitting_sizes(args, args.rollout.n_samples_per_prompt))}, or set it to one of them"
        )
    settings = {name: getattr(flags, name) for name in SETTINGS}
    settings["initial_group_size"] = args.rollout.n_samples_per_prompt
    controller = StragglerAwareGroupController(flags.group_sizes, **settings)
    return OwnSizePolicy(flags.policy, settings, controller) if flags.policy else controller


def build_sampler(args: Settings) -> DynamicSampler:
    """The dynamic sampler that the flags describe; without --algo.dynamic_filtering_enable it keeps what has a reward.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    algo = args.algo
    settings = {"tolerance": algo.dynamic_filtering_tolerance, "range": tuple(algo.dynamic_filtering_range)}
    return DynamicSampler(
        tolerance=algo.dynamic_filtering_tolerance if algo.dynamic_filtering_enable else None,
        score_range=tuple(algo.dynamic_filtering_range),
        check_range=tuple(algo.dynamic_filtering_range) != ANY_MEAN,
        max_gen_batches=algo.dynamic_filtering_max_gen_batches,
        filter=OwnFilter(algo.dynamic_filtering_policy, settings) if algo.dynamic_filtering_policy else None,
    )


def build_batcher(args: Settings, num_engines: int = 1) -> Batcher:
    """The policy that the flags describe for the rounds.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    flags, ratio = args.rollout.tail_batching, prompt_ratio(args)
    if not flags.enable:
        return NoTailBatching()
    if flags.method == "stop":
        return TailBatcher(prompt_ratio=ratio, response_ratio=flags.response_ratio)
    if flags.response_ratio != 1:
        raise ValueError(f"response_ratio {flags.response_ratio:g} is of {TAIL}method stop: add that, or drop it")
    try:
        if flags.method == "sort":
            return SortedSteps(prompt_ratio=ratio, seed=args.train.seed)
        return BestRounds(prompt_ratio=ratio, seed=args.train.seed, num_engines=num_engines)
    except ValueError as error:
        advice = f"{MOST_RATIO}, or {TAIL}method stop" if MOST_RATIO < ratio < math.inf else "1"
        raise ValueError(f"{error}: use {advice}") from None


def build_step_model(args: Settings, num_engines: int) -> StepModel | None:
    """What the objective throughput needs to choose a size; None for another one, or where there is no choice."""
    flags = args.rollout.sagc
    if flags.objective != "throughput" or len(set(flags.group_sizes)) == 1:
        return None
    return StepModel(num_engines, flags.discount)


def build_token_weights(args: Settings) -> TokenWeights | None:
    """What weighs the steps; None for a loss that is not a mean over tokens."""
    if args.actor.loss_agg_mode != "token-mean" or args.actor.policy_loss_type == "gspo":
        return None
    tail = args.rollout.tail_batching
    has_frames = tail.enable and (tail.method != "stop" or prompt_ratio(args) > 1)
    return TokenWeights(by_frame=has_frames and tail.token_weight == "plain")


def build_planner(args: Settings, num_engines: int) -> StepPlanner:
    """The planner with all policies that the flags describe.

    Raises:
        ValueError: a flag is out of range; the message begins with its name.
    """
    rollout = args.rollout
    return StepPlanner(
        build_controller(args),
        build_sampler(args),
        build_batcher(args, num_engines),
        LengthPredictor() if predicts_lengths(args) else None,
        hold=rollout.sagc.hold,
        samples=samples_per_step(args)[0],
        prompts=rollout.batch_size,
        signal=rollout.sagc.signal,
        num_engines=num_engines,
        whole_groups=rollout.drafts != "off" and not rollout.length_aware_dispatch,
        step_model=build_step_model(args, num_engines),
        group_sizes=sorted(set(rollout.sagc.group_sizes)),
        token_weights=build_token_weights(args),
        pool=Pool(rollout.pool, rollout.max_age, args.train.num_episodes) if rollout.pool else None,
    )

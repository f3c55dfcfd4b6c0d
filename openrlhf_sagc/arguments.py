"""The flags of `python -m openrlhf_sagc`: what it rolls out by, and what it checks before Ray starts.

The command itself switches the scheduler and the faster step on. Flags choose rules: Straggler-Aware Group Control (SAGC),
tail batching, dynamic sampling, rewards. An error is one line that names the flag, the value and what would work.
"""

import argparse
import operator
from types import SimpleNamespace

from openrlhf_sagc.advantages.estimators import ESTIMATORS, OWN
from openrlhf_sagc.config.batches import check_batch
from openrlhf_sagc.config.checks import (
    check_agent,
    check_group,
    check_history,
    check_kept_rollouts,
    check_modes,
    check_prompts,
    check_reward,
    check_trace,
)
from openrlhf_sagc.config.engine_args import check_drafts
from openrlhf_sagc.config.inputs import check_inputs
from openrlhf_sagc.config.late_flags import check_late_flags
from openrlhf_sagc.config.prompts import DRAWN, rows_to_check
from openrlhf_sagc.config.refusal import (
    AGENT_TIMEOUT,
    CHECK_ROWS,
    DRAFTS,
    FILTER,
    LENGTH_AWARE,
    LENGTH_HISTORY,
    MAX_AGE,
    OFF,
    POOL,
    PREFIX,
    RESUME_DATA,
    REWARD,
    ROLLOUTS_FROM,
    ROLLOUTS_TO,
    TAIL,
    TRACE,
    refusal,
)
from openrlhf_sagc.config.reward_addresses import check_addresses
from openrlhf_sagc.config.savings import LOG_PROBS, MICRO_BATCHES, STREAM
from openrlhf_sagc.config.settings import METHODS, OLDEST, NotGiven, Settings, settled
from openrlhf_sagc.config.start_line import describe, warn_of_no_checkpoint
from openrlhf_sagc.decisions.objectives import OBJECTIVES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags, and let --help say every default, OpenRLHF's too."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    _add_control(parser.add_argument_group("Straggler-Aware Group Control, SAGC (openrlhf_sagc)"))
    _add_tail_batching(parser.add_argument_group("tail batching and placed rollouts (openrlhf_sagc)"))
    _add_sampling(parser.add_argument_group("dynamic sampling and rewards (openrlhf_sagc)"))
    _add_training(parser.add_argument_group("training step (openrlhf_sagc)"))
    _add_files(parser.add_argument_group("files (openrlhf_sagc)"))
    parser.set_defaults(**{"rollout.pool": None})  # prompts in flight over steps: no flag, see `validated`
    for action in parser._actions:
        if action.dest == "algo.advantage.estimator":
            action.choices = [*dict.fromkeys([*(action.choices or ()), *ESTIMATORS])]
        if action.dest == "algo.advantage.is_correction_level":
            action.type, action.default = None, NotGiven(action.default)  # a type would make it a plain string
        if POOL.endswith(action.dest):
            action.help = "with --train.partial_rollout_enable: prompts in flight, which run on over steps (a pool)"


def _add_control(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        PREFIX + "enable",
        action="store_true",
        help="Straggler-Aware Group Control: choose the group size of every step, beginning with n_samples_per_prompt",
    )
    group.add_argument(
        PREFIX + "group_sizes",
        type=int,
        nargs="*",
        default=[4, 8, 16, 32],
        help="group sizes (samples per prompt) that group control chooses from",
    )
    group.add_argument(
        PREFIX + "policy",
        default=None,
        metavar="FILE.py:Class",
        help="a class of yours that chooses the group size in the place of group control, see docs/architecture.md",
    )
    group.add_argument(
        PREFIX + "straggler_ratio",
        type=float,
        default=2.5,
        help="a group has a straggler if its longest rollout reaches this multiple of the group's median",
    )
    group.add_argument(
        PREFIX + "max_straggler_rate",
        type=float,
        default=0.2,
        help="limit on the share of groups with a straggler, in the long run",
    )
    group.add_argument(
        PREFIX + "tradeoff",
        type=float,
        default=2.0,
        help="weight of the objective against the limit; a smaller weight meets the limit sooner",
    )
    group.add_argument(
        PREFIX + "discount",
        type=float,
        default=0.98,
        help="factor by which the weight of earlier steps shrinks with every step",
    )
    group.add_argument(
        PREFIX + "objective",
        choices=OBJECTIVES,
        default="throughput",
        help="what to maximise within the limit: effective samples a second (throughput), or the group size (size)",
    )
    group.add_argument(
        PREFIX + "hold",
        choices=("samples", "prompts"),
        default="samples",
        help="what every group size has in common: batch_size x n_samples_per_prompt samples, or batch_size prompts",
    )
    group.add_argument(
        PREFIX + "signal",
        choices=("tokens", "seconds"),
        default="tokens",
        help="measure a rollout by its response tokens, or by its seconds with tools and without the engine's queue",
    )


def _add_tail_batching(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        TAIL + "enable",
        action="store_true",
        help="no step waits long for a few slow prompts; method says how",
    )
    group.add_argument(
        TAIL + "method",
        choices=METHODS,
        default="auto",
        help="sort prompts into steps by earlier lengths, or stop slow ones for long rounds; auto: fastest by forecast",
    )
    group.add_argument(
        TAIL + "prompt_ratio",
        type=float,
        default=None,
        help="prompts that a step requests over those it needs; without it 1.25 for stop, 1 for sort and auto",
    )
    group.add_argument(
        TAIL + "response_ratio",
        type=float,
        default=1.0,
        help="a short round requests this many times the responses that a group needs; above 1 selects short ones",
    )
    group.add_argument(
        TAIL + "token_weight",
        choices=("plain", "round"),
        default="plain",
        help="weigh each token as without tail batching (plain), or each round the same (round)",
    )
    group.add_argument(
        LENGTH_AWARE,
        action="store_true",
        help="placed rollouts: each goes to the engine with the fewest expected tokens, and long prompts start first",
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        MAX_AGE,
        type=int,
        default=OLDEST,
        help="updates between the weights that begin a group of a pool and the update that trains it, at most; steps wait",
    )
    group.add_argument(
        DRAFTS,
        choices=("off", "siblings"),
        default="off",
        help="siblings: engines try what other responses to a prompt went on with; samples are distributed as without",
    )
    group.add_argument(
        "--data.keep_order",
        action="store_true",
        help="draw prompts in the order of the data in every episode, instead of an order by --train.seed",
    )
    group.add_argument(
        FILTER + "tolerance",
        type=float,
        default=1e-6,
        help="scores of a group count as equal if they differ by at most this",
    )
    group.add_argument(
        FILTER + "policy",
        default=None,
        metavar="FILE.py:Class",
        help="a class of yours whose admit(group) judges groups in the place of their scores, see docs/architecture.md",
    )
    group.add_argument(
        FILTER + "max_gen_batches",
        type=int,
        default=10,
        help="a step requests at most this many times the groups that it needs",
    )
    group.add_argument(
        FILTER + "at_cap",
        choices=("fail", "keep"),
        default="fail",
        help="end the run (fail), or train on the groups there are (keep), if max_gen_batches does not fill a step",
    )
    group.add_argument(
        FILTER + "surplus",
        choices=("discard", "keep"),
        default="discard",
        help="roll out again (discard), or train a step later (keep), the groups that a step does not need",
    )
    group.add_argument(
        REWARD + "timeout",
        type=float,
        default=180.0,
        help="seconds for a request to a reward server; seconds that a function's call may compute, or do nothing",
    )
    group.add_argument(REWARD + "retries", type=int, default=2, help="further attempts at a reward that failed")
    group.add_argument(
        REWARD + "max_failure_share",
        type=float,
        default=0.02,
        help="end the run if more than this share of a step's samples, of several groups, lacks a reward",
    )
    group.add_argument(
        AGENT_TIMEOUT,
        type=float,
        default=None,
        help="seconds that an agent may spend on one tool call or reward before its sample fails",
    )


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        LOG_PROBS,
        choices=("auto", "forward"),
        default="auto",
        help="auto: training computes old log-probabilities itself if that is exact; forward: a separate pass does",
    )
    group.add_argument(
        MICRO_BATCHES,
        choices=("length", "shuffled"),
        default="length",
        help="fill micro-batches with samples of similar length, which saves padding (length), or in random order",
    )
    group.add_argument(
        STREAM,
        choices=("off", "auto"),
        default="off",
        help="auto: train on finished groups while others still decode, if the gradient stays the same",
    )


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        TRACE,
        default=None,
        metavar="FILE",
        help="write a CSV row per rollout (tokens, seconds, correct, ...) for eval/simulate.py",
    )
    group.add_argument(
        LENGTH_HISTORY,
        default=None,
        metavar="PATH",
        help="trace or --ckpt.path of an earlier run on these prompts, whose lengths are then known from the first step on",
    )
    words = "keep the rollouts that each step trains in this folder, for --train.rollouts_from"
    group.add_argument(ROLLOUTS_TO, default=None, metavar="FOLDER", help=words)
    words = "train the steps that --train.rollouts_to has kept again, without engines, evaluations and checkpoints"
    group.add_argument(ROLLOUTS_FROM, default=None, metavar="FOLDER", help=words)
    group.add_argument(
        RESUME_DATA,
        choices=("same", "anew"),
        default="same",
        help="end a resumed run (same), or begin its episode anew (anew), if its data have changed",
    )
    group.add_argument(
        "--ckpt.grace_seconds",
        type=float,
        default=25.0,
        help="seconds that a run may take at SIGTERM, SIGINT or SIGHUP to save its last finished step",
    )
    group.add_argument(
        CHECK_ROWS,
        type=rows_to_check,
        default=DRAWN,
        metavar="N",
        help="try templates and tokenizer on this many prompts of each dataset, or on all, before Ray starts",
    )


def checked_settings(args: SimpleNamespace) -> Settings:
    """What the flags come to, once they are checked against each other and the run's data; says it in a line.

    Args:
        args: OpenRLHF's arguments after its own checks, nested by the dots in their names. They stay as they are.

    Raises:
        SystemExit: a flag cannot work; the message is one line.
    """
    # Not at the top: it needs numpy, as --help does not.
    from openrlhf_sagc.policies import build_batcher, build_controller, build_sampler

    check_drafts(args.rollout.drafts, args.vllm.engine_args)
    off, args = off_command(args), settled(args)
    check_late_flags(args)
    check_group(args, off)
    check_addresses(args)
    builds = ((PREFIX, build_controller), (FILTER, build_sampler), (TAIL, build_batcher), (REWARD, check_reward))
    for prefix, build in builds:
        try:
            build(args)
        except ValueError as error:
            raise refusal(f"{prefix}{error}") from None
    check_agent(args)
    check_history(args)
    check_trace(args.rollout.trace)
    check_kept_rollouts(args)
    check_modes(args, off)
    check_batch(args, off)
    prompts = check_inputs(args)
    check_prompts(args, prompts, off)
    print(f"openrlhf_sagc: {describe(args)}")
    warn_of_no_checkpoint(args, prompts)
    return args


def off_command(args: SimpleNamespace) -> str:
    """What runs the script as it is: OpenRLHF without the scheduler, and without those of its flags that are this package's.

    Args:
        args: as they were given.

    Returns:
        The end of a line's advice; empty if OpenRLHF cannot run the script either.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    if args.algo.advantage.estimator in OWN:
        return ""
    defaults = [(name, default) for name, default in vars(parser.parse_args([])).items() if name != "rollout.pool"]
    given = [f"--{name}" for name, default in defaults if operator.attrgetter(name)(args) != default]
    if given:
        return f", or start {OFF} without {' '.join(given)}, which runs the rest as it is"
    return f", or start {OFF}, which runs the script as it is"

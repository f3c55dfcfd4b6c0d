"""How many ranks a run's models have, and into how many batches a step of samples is cut."""

import math
from types import SimpleNamespace


def data_parallel_actors(args: SimpleNamespace) -> int:
    """Ranks that share the samples of a step."""
    return _data_parallel_ranks(args, "actor")


def forward_ranks(args: SimpleNamespace) -> dict[str, int]:
    """Data-parallel ranks of each model that runs a step's samples, by the section of its flags.

    No critic is among them: the estimators of groups have none.
    """
    sections = ["actor"]
    if args.algo.kl.init_coef > 0:
        sections.append("ref")
    if not args.reward.remote_url and not args.train.agent_func_path:
        sections.append("reward")
    return {section: _data_parallel_ranks(args, section) for section in sections}


def fewest_batches(args: SimpleNamespace, samples: int) -> int:
    """Batches into which OpenRLHF cuts a step of `samples` for the forward passes; the least there can be if dynamic."""
    actors = data_parallel_actors(args)
    if args.train.dynamic_batch_enable:
        return actors
    batches = math.ceil(samples / args.rollout.micro_batch_size)
    if actors > 1 and samples >= actors:  # whole rounds of all actors
        batches = min(math.ceil(batches / actors), samples // actors) * actors
    return batches


def uneven_share(args: SimpleNamespace, batches: int, ranks: int) -> str:
    """Why a model's ranks cannot run these batches, for an error message; empty if they can.

    OpenRLHF gives each rank a batch at least. Under ZeRO-3 ranks wait for each other in every forward pass.
    """
    if batches < ranks:
        return "fewer than one each"
    if args.ds.zero_stage == 3 and batches % ranks:
        return "which they cannot share evenly, so ZeRO-3 would wait for ever"
    return ""


def samples_per_step(args: SimpleNamespace) -> tuple[int, str]:
    """Samples of a step at the first group size, and the flags that say so."""
    batch_size, n_samples = args.rollout.batch_size, args.rollout.n_samples_per_prompt
    return batch_size * n_samples, f"--rollout.batch_size {batch_size} x --rollout.n_samples_per_prompt {n_samples}"


def _data_parallel_ranks(args: SimpleNamespace, section: str) -> int:
    flags = getattr(args, section)
    return max(flags.num_nodes * flags.num_gpus_per_node // (args.ds.ring_attn_size * args.ds.tensor_parallel_size), 1)


def longest_response(args: SimpleNamespace) -> int:
    """Tokens that a response may have; an upper bound for agents, whose turns share data.max_len."""
    longest = None if args.train.agent_func_path else args.rollout.max_new_tokens
    return longest or args.data.max_len

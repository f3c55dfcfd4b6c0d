"""How many ranks a run's models have, and how many samples a step has and needs."""

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


def fewest_samples(args: SimpleNamespace) -> int:
    """Samples that a step needs: OpenRLHF gives every rank of every model an even share, in as many forward passes."""
    return math.lcm(*forward_ranks(args).values())


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

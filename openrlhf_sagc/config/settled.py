"""What the command's flags come to: values that follow from other flags, and secrets that are not printed."""

import copy
import os
from types import SimpleNamespace

from openrlhf_sagc.redaction import RewardUrl, Secret


def settled(args: SimpleNamespace) -> SimpleNamespace:
    """A copy of the arguments, nested by the dots in their names, as all other parts of the package read them."""
    args = with_hidden_key(args)
    if not args.rollout.sagc.enable:
        args.rollout.sagc.group_sizes = [args.rollout.n_samples_per_prompt]
    if args.rollout.trace is not None:
        args.rollout.trace = os.path.abspath(args.rollout.trace)  # Ray's processes have another working folder
    # A file stays a plain string: Python could not write the bytecode of a module whose path is of another type.
    urls = args.reward.remote_url
    args.reward.remote_url = urls and [url if url.endswith(".py") else RewardUrl(url) for url in urls]
    return args


def with_hidden_key(args: SimpleNamespace) -> SimpleNamespace:
    """A copy of the arguments whose W&B key is not printed, as OpenRLHF prints all of them."""
    args = copy.deepcopy(args)
    args.logger.wandb.key = args.logger.wandb.key and Secret(args.logger.wandb.key)
    return args

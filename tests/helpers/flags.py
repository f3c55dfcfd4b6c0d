"""Flags as OpenRLHF's script hands them over: nested by the dots in their names."""

import argparse
from types import SimpleNamespace

from openrlhf.utils.config import hierarchize

from openrlhf_sagc.arguments import add_arguments

LOSS = {"actor.loss_agg_mode": "token-mean", "actor.policy_loss_type": "ppo"}  # OpenRLHF's defaults


def arguments_with(flags: dict) -> SimpleNamespace:
    """These flags by name, and the defaults of all others of the package and of the loss."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return hierarchize(argparse.Namespace(**vars(parser.parse_args([])) | LOSS | flags))

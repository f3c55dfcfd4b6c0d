"""Flags as OpenRLHF's script hands them over: nested by the dots in their names."""

import argparse
from types import SimpleNamespace

from openrlhf.utils.config import hierarchize

from openrlhf_sagc.arguments import add_arguments


def arguments_with(flags: dict) -> SimpleNamespace:
    """These flags by name, and the defaults of all others of the package."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return hierarchize(argparse.Namespace(**vars(parser.parse_args([])) | flags))

"""`python -m openrlhf_sagc.unpatched`: OpenRLHF as released, with its flags alone, which the other commands are compared with."""

import argparse
import runpy
import sys
from collections.abc import Sequence

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.compilation import compile_nothing_on_cpus
from openrlhf_sagc.config.flags import parse_plain_flags, released_parser
from openrlhf_sagc.run.kept import keep_run
from openrlhf_sagc.run.output import redact_output
from openrlhf_sagc.run.trees import RELEASED, bring_tree, check_stack, use_tree

COMMAND = "python -m openrlhf_sagc.unpatched"


def read_flags(words: Sequence[str]) -> argparse.Namespace:
    """The flags, if OpenRLHF as released takes them, without its imports of vLLM and torch.

    Raises:
        SystemExit: a flag or value is not taken; a line each.
    """
    return parse_plain_flags(words, released_parser(), add_arguments, COMMAND)


def main() -> None:
    compile_nothing_on_cpus()
    tree = use_tree(RELEASED)
    flags = read_flags(sys.argv[1:])
    check_stack(RELEASED)
    keep_run("openrlhf_sagc.unpatched", sys.argv[1:], flags, tree)
    bring_tree(tree, getattr(flags, "vllm.enforce_eager"))
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    redact_output()
    main()

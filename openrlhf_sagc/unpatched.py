"""`python -m openrlhf_sagc.unpatched`: OpenRLHF as released, with its flags alone, which the other commands are compared with."""

import runpy
import sys
from collections.abc import Sequence

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.compilation import compile_nothing_on_cpus
from openrlhf_sagc.config.flags import parse_plain_flags, released_parser
from openrlhf_sagc.redaction import redact_output
from openrlhf_sagc.run.trees import RELEASED, bring_tree, check_stack, use_tree

COMMAND = "python -m openrlhf_sagc.unpatched"


def check_flags(words: Sequence[str]) -> None:
    """End the run on flags that OpenRLHF as released does not take, without its imports of vLLM and torch.

    Raises:
        SystemExit: a flag or value is not taken; a line each.
    """
    parse_plain_flags(words, released_parser(), add_arguments, COMMAND)


def main() -> None:
    compile_nothing_on_cpus()
    tree = use_tree(RELEASED)
    check_flags(sys.argv[1:])
    check_stack(RELEASED)
    bring_tree(tree)
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    redact_output()
    main()

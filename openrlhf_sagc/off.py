"""`python -m openrlhf_sagc.off`: patched OpenRLHF without the scheduler and the faster step, with OpenRLHF's flags alone."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from openrlhf_sagc.arguments import add_arguments
from openrlhf_sagc.config.compilation import compile_nothing_on_cpus
from openrlhf_sagc.config.flags import openrlhf_parser, parse_plain_flags
from openrlhf_sagc.config.refusal import OFF
from openrlhf_sagc.config.settings import with_hidden_key
from openrlhf_sagc.config.upstream_checks import validated
from openrlhf_sagc.run.kept import keep_run
from openrlhf_sagc.run.notes import NOTE
from openrlhf_sagc.run.output import redact_output
from openrlhf_sagc.run.trees import PATCHED, bring_tree, check_stack, use_tree


def read_arguments(words: Sequence[str]) -> SimpleNamespace:
    """The arguments of a run with these flags.

    Raises:
        SystemExit: a flag is this package's, or cannot work; a line each.
    """
    flags = parse_plain_flags(words, openrlhf_parser(), add_arguments, OFF)
    check_stack()
    from openrlhf.cli import train_ppo_ray  # takes 9 s, so behind the flags

    return with_hidden_key(validated(train_ppo_ray.validate_args, flags))


def warn_of_lost_prompts(args: SimpleNamespace) -> None:
    """Say that OpenRLHF goes on from a checkpoint of the scheduler without what that holds."""
    path = args.ckpt.path
    if args.ckpt.load_enable and any(Path(path, "_actor").glob(f"*global_step*/{NOTE}")):
        print(
            f"openrlhf_sagc: --ckpt.path {path} has checkpoints of the scheduler, whose waiting prompts are lost without it, or "
            "whose episode begins again: to go on with all prompts, start python -m openrlhf_sagc",
            file=sys.stderr,
        )


def main() -> None:
    compile_nothing_on_cpus()
    tree = use_tree(PATCHED)
    args = read_arguments(sys.argv[1:])
    from openrlhf.cli import train_ppo_ray

    warn_of_lost_prompts(args)
    keep_run("openrlhf_sagc.off", sys.argv[1:], args, tree)
    bring_tree(tree, args.vllm.enforce_eager)
    train_ppo_ray.train(args)


if __name__ == "__main__":
    redact_output()
    main()

"""`python -m openrlhf_sagc`: OpenRLHF's train_ppo_ray with this package's scheduler and faster step, by the script's own flags."""

import sys
from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_sagc.arguments import add_arguments, checked_arguments
from openrlhf_sagc.config.compilation import compile_nothing_on_cpus
from openrlhf_sagc.config.flags import parse_flags
from openrlhf_sagc.config.upstream_checks import validated
from openrlhf_sagc.redaction import redact_output
from openrlhf_sagc.run.checkpoints import choose_checkpoint
from openrlhf_sagc.run.data import check_data
from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
from openrlhf_sagc.run.output_folders import held_folders


def read_arguments(words: Sequence[str]) -> SimpleNamespace:
    """The arguments of a run with these flags.

    Raises:
        SystemExit: a flag cannot work; a line each.
    """
    flags = parse_flags(words, add_arguments)
    from openrlhf.cli import train_ppo_ray  # takes 9 s, so behind the flags

    return checked_arguments(validated(train_ppo_ray.validate_args, flags))


def main() -> None:
    compile_nothing_on_cpus()
    args = read_arguments(sys.argv[1:])
    from openrlhf.cli import train_ppo_ray

    from openrlhf_sagc.driver import trainers
    from openrlhf_sagc.driver.trace import held_trace
    from openrlhf_sagc.run.deaths import ended_by_deaths

    # In this order: nothing is moved before it is held, and no folder is held for flags that cannot work.
    with held_folders(args) as held, held_trace(args):
        args.data.described = check_data(args, choose_checkpoint(args))
        set_earlier_outputs_aside(args, held)
        with ended_by_deaths(args):
            train_ppo_ray.train(args, trainers.GroupTrainerAsync if args.train.async_enable else trainers.GroupTrainer)


if __name__ == "__main__":
    redact_output()
    main()

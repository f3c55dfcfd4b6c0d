"""`python -m openrlhf_sagc`: OpenRLHF's train_ppo_ray with this package's scheduler and faster step, by the script's own flags."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from openrlhf_sagc.arguments import add_arguments, checked_settings
from openrlhf_sagc.config.compilation import compile_nothing_on_cpus
from openrlhf_sagc.config.flags import parse_flags
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.config.upstream_checks import validated
from openrlhf_sagc.run.checkpoints import choose_checkpoint
from openrlhf_sagc.run.data import check_data
from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
from openrlhf_sagc.run.finished import is_done
from openrlhf_sagc.run.kept import keep_run
from openrlhf_sagc.run.output import redact_output
from openrlhf_sagc.run.output_folders import held_folders
from openrlhf_sagc.run.trees import PATCHED, bring_tree, check_stack, use_tree


def read_settings(words: Sequence[str]) -> Settings:
    """The settings of a run with these flags.

    Raises:
        SystemExit: a flag cannot work; a line each.
    """
    flags = parse_flags(words, add_arguments)
    check_stack()
    from openrlhf.cli import train_ppo_ray  # takes 9 s, so behind the flags

    return checked_settings(validated(train_ppo_ray.validate_args, flags))


class Prepared(NamedTuple):
    """What is to be trained.

    Attributes:
        settings: of the run.
        trainer: its class.
        is_held: the run holds --ckpt.path.
    """

    settings: Settings
    trainer: type
    is_held: bool


def prepared(stack: ExitStack) -> Prepared | None:
    """Everything before Ray: the flags and data are checked, and the folders are held until the stack is closed.

    Returns:
        None if nothing is left to train.
    """
    compile_nothing_on_cpus()
    tree = use_tree(PATCHED)
    settings = read_settings(sys.argv[1:])
    from openrlhf_sagc.driver import trainers
    from openrlhf_sagc.driver.kept_steps import check_kept_steps
    from openrlhf_sagc.driver.trace import held_trace

    check_kept_steps(settings)
    # In this order: nothing is moved before it is held, and no folder is held for flags that cannot work.
    held = stack.enter_context(held_folders(settings))
    stack.enter_context(held_trace(settings))
    checkpoint = choose_checkpoint(settings)
    found = {"ckpt.load_enable": checkpoint is not None, "data.described": check_data(settings, checkpoint)}
    settings = settings.with_values(found)
    if is_done(settings, checkpoint):
        return None
    set_earlier_outputs_aside(settings, held)
    keep_run(
        "openrlhf_sagc", sys.argv[1:], settings, tree, settings.data.described.get("held") if checkpoint else None
    )
    bring_tree(tree, settings.vllm.enforce_eager)
    trainer = trainers.GroupTrainerAsync if settings.train.async_enable else trainers.GroupTrainer
    return Prepared(settings, trainer, "--ckpt.path" in held)


def main() -> None:
    with ExitStack() as stack:
        with hearing_signals():
            run = prepared(stack)
        if run:
            from openrlhf.cli import train_ppo_ray

            from openrlhf_sagc.run.deaths import ended_by_deaths
            from openrlhf_sagc.run.signals import ended_by_signals

            with ended_by_deaths(run.settings), ended_by_signals(run.settings, run.is_held):
                train_ppo_ray.train(run.settings.openrlhf_args(), run.trainer)


@contextmanager
def hearing_signals() -> Iterator[None]:
    """End at a signal that comes before Ray starts, which takes a while; `ended_by_signals` hears the later ones."""

    def end(number: int, frame: Any) -> None:
        if number != signal.SIGUSR1:  # nothing is there to be saved
            words = f"ended by {signal.Signals(number).name} before the training began: start the same command again"
            with suppress(OSError, ValueError):  # of a dead pipe
                print(f"\nopenrlhf_sagc: {words}", file=sys.stderr, flush=True)
                sys.stdout.flush()
            os._exit(128 + number)  # what is imported may catch exceptions

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            usual = signal.getsignal(number)
            if usual not in (signal.SIG_IGN, None):  # None: not Python's own
                signal.signal(number, end)
                stack.callback(signal.signal, number, usual)
        yield


if __name__ == "__main__":
    redact_output()
    main()

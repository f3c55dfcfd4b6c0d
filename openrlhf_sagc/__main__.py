"""`python -m openrlhf_sagc`: OpenRLHF's train_ppo_ray with this package's scheduler and faster step, by the script's own flags."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from openrlhf_sagc.arguments import add_arguments, checked_settings
from openrlhf_sagc.config.compilation import compile_nothing_on_cpus
from openrlhf_sagc.config.flags import parse_flags
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.config.upstream_checks import validated
from openrlhf_sagc.redaction import redact_output
from openrlhf_sagc.run.checkpoints import choose_checkpoint
from openrlhf_sagc.run.data import check_data
from openrlhf_sagc.run.earlier_outputs import set_earlier_outputs_aside
from openrlhf_sagc.run.finished import is_done
from openrlhf_sagc.run.kept import keep_run
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


def main() -> None:
    compile_nothing_on_cpus()
    tree = use_tree(PATCHED)
    settings = read_settings(sys.argv[1:])
    from openrlhf.cli import train_ppo_ray

    from openrlhf_sagc.driver import trainers
    from openrlhf_sagc.driver.trace import held_trace
    from openrlhf_sagc.run.deaths import ended_by_deaths
    from openrlhf_sagc.run.signals import ended_by_signals

    # In this order: nothing is moved before it is held, and no folder is held for flags that cannot work.
    with held_folders(settings) as held, held_trace(settings):
        checkpoint = choose_checkpoint(settings)
        found = {"ckpt.load_enable": checkpoint is not None, "data.described": check_data(settings, checkpoint)}
        settings = settings.with_values(found)
        if is_done(settings, checkpoint):
            return
        set_earlier_outputs_aside(settings, held)
        keep_run(
            "openrlhf_sagc", sys.argv[1:], settings, tree, settings.data.described.get("held") if checkpoint else None
        )
        trainer = trainers.GroupTrainerAsync if settings.train.async_enable else trainers.GroupTrainer
        bring_tree(tree, settings.vllm.enforce_eager)
        with ended_by_deaths(settings), ended_by_signals(settings, "--ckpt.path" in held):
            train_ppo_ray.train(settings.openrlhf_args(), trainer)


@contextmanager
def hearing_signals() -> Iterator[None]:
    """End at a signal that comes before Ray starts, which takes a while; `ended_by_signals` hears the later ones."""

    def end(number: int, frame: Any) -> None:
        if number != signal.SIGUSR1:  # nothing is there to be saved
            words = f"ended by {signal.Signals(number).name} before the training began: start the same command again"
            print(f"\nopenrlhf_sagc: {words}", file=sys.stderr, flush=True)
            os._exit(128 + number)  # what is imported may catch exceptions

    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            usual = signal.getsignal(number)
            if usual is not signal.SIG_IGN:
                signal.signal(number, end)
                stack.callback(signal.signal, number, usual)
        yield


if __name__ == "__main__":
    redact_output()
    with hearing_signals():
        main()

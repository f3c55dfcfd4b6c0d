"""What a step's samples, training batches and ranks ask of each other, and the nearest numbers that fit."""

import re

import pytest

from openrlhf_sagc.config.batches import batch_flags, check_batch
from openrlhf_sagc.config.settings import settled

CONTROL = ["--rollout.sagc.enable", "--rollout.sagc.group_sizes", "4", "8", "16", "32"]


def step(prompts, size, batch, gpus):
    given = {"rollout.batch_size": prompts, "rollout.n_samples_per_prompt": size, "train.batch_size": batch}
    given |= {"actor.num_gpus_per_node": gpus, "ref.num_gpus_per_node": gpus, "train.micro_batch_size": 1}
    return [word for name, number in given.items() for word in (f"--{name}", str(number))]


@pytest.mark.parametrize(
    "flags, advice",
    [
        (step(8, 4, 32, 6), "use --rollout.batch_size 9 --train.batch_size 36"),
        (step(512, 16, 512, 3), "use --rollout.batch_size 513 --train.batch_size 513"),
        ([*step(512, 16, 512, 3), *CONTROL], "use --rollout.batch_size 510 --train.batch_size 510"),
        (step(8, 8, 48, 1), "use --train.batch_size 32"),
        (step(8, 8, 48, 4), "use --train.batch_size 32"),
        (step(2, 4, 8, 16), "use --rollout.batch_size 4 --train.batch_size 16"),
        (
            [*step(2, 4, 8, 16), "--rollout.micro_batch_size", "2"],
            "use --rollout.batch_size 4 --train.batch_size 16 --rollout.micro_batch_size 1",
        ),
        (step(7, 4, 28, 8), "use --rollout.batch_size 8 --train.batch_size 32"),
        ([*step(8, 8, 64, 1), "--train.micro_batch_size", "24"], "use a divisor of 64"),
        ([*step(8, 8, 32, 2), "--ref.num_gpus_per_node", "5"], ""),
    ],
)
def test_a_line_names_flags_with_which_all_fits(arguments, refused, flags, advice):
    def look(*more):
        return refused(lambda: check_batch(settled(arguments(*flags, *more)), ""))

    line = look()
    assert line.endswith(advice) and bool(line) == bool(advice)
    if words := re.search("use (--.*)", line):
        assert not look(*words[1].split())


def test_openrlhfs_own_runs_keep_their_batches(arguments):
    args = arguments(*step(8, 8, 48, 5))
    assert batch_flags(args, {"rollout.n_samples_per_prompt": 4})
    del args.rollout.sagc
    assert batch_flags(args, {}) == [] and batch_flags(args, {}, 5) == ["--rollout.batch_size 5"]

"""What a simulated step leaves out is decided by training's own rules."""

import argparse

import pytest
from lib.simulation.work import Work, add_work_flags, work_of

from openrlhf_sagc.arguments import add_arguments


def parsed(*flags):
    parser = argparse.ArgumentParser()
    add_work_flags(parser)
    parser.set_defaults(gpus=[8, 16])
    return parser.parse_args(flags)


def test_nothing_is_left_out_unless_a_flag_says_so():
    work = work_of(parsed())
    assert work == Work() and work.has_forward and not work.by_length and not work.streams


@pytest.mark.parametrize(
    "words, has_forward, by_length, streams",
    [
        ("--old_log_probs auto", False, False, False),
        ("--micro_batches length", True, True, False),
        ("--micro_batches shuffled", True, False, False),
        ("--old_log_probs auto --micro_batches length --actor_gpus 4 --stream auto", False, True, True),
        ("--old_log_probs auto --micro_batches shuffled --actor_gpus 4 --stream auto", False, False, True),
    ],
)
def test_flags_leave_out_what_they_leave_out_in_training(words, has_forward, by_length, streams):
    work = work_of(parsed(*words.split()))
    assert (work.has_forward, work.by_length, work.streams) == (has_forward, by_length, streams)


def test_two_optimizer_steps_are_trained_one_by_one_where_samples_are_padded():
    assert Work(old_log_probs="auto", optimizer_steps=2).has_forward  # of packed samples
    padded = {"old_log_probs": "auto", "micro_batches": "length", "stream": "auto", "actor_gpus": 1}
    for steps, in_parts in ((1, False), (2, True)):
        work = Work(**padded, optimizer_steps=steps)
        assert (work.has_forward, work.in_parts, work.streams) == (False, in_parts, True)


@pytest.mark.parametrize(
    "words, reason",
    [
        (
            "--old_log_probs auto --micro_batches length",
            "--train.colocate_all puts the engines on the actors' devices",
        ),
        ("--old_log_probs auto --actor_gpus 4", "--ds.packing_samples plans its micro-batches with all samples"),
        ("--micro_batches length --actor_gpus 4", "--train.old_log_probs forward asks for it"),
    ],
)
def test_a_run_that_cannot_stream_is_refused_with_trainings_reason(words, reason):
    with pytest.raises(ValueError, match=f"--stream auto: training waits for all groups .{reason}.*use --stream off"):
        work_of(parsed(*words.split(), "--stream", "auto"))


@pytest.mark.parametrize(
    "words, message",
    [
        ("--micro_batch_size 0", "--micro_batch_size must be at least 1, got 0"),
        ("--optimizer_steps 0", "--optimizer_steps must be at least 1, got 0"),
        ("--actor_gpus 8", "--actor_gpus must be at least 0 and leave GPUs of --gpus 8 to the engines, got 8"),
        ("--actor_gpus -1", "--actor_gpus must be at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        work_of(parsed(*words.split()))


def test_choices_are_trainings_and_packed_samples():
    training, simulated = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_arguments(training)
    add_work_flags(simulated)
    theirs = {action.dest.removeprefix("train."): action.choices for action in training._actions}
    ours = {action.dest: action.choices for action in simulated._actions}
    assert ours["old_log_probs"] == theirs["old_log_probs"] and ours["stream"] == theirs["stream"]
    assert set(ours["micro_batches"]) == {*theirs["micro_batches"], "packed"}

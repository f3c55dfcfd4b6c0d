"""What runs when a pool's checkpoint is saved goes on in a resumed run: nothing that was decoded is decoded again."""

import io
import random

import numpy as np
import pytest
import torch

POOL = {
    "group_sizes": [4],
    "enable": False,
    "train__async_enable": True,
    "train__partial_rollout_enable": True,
    "train__async_queue_size": 1,
    "rollout__pool": 8,
    "rollout__max_age": 3,
}


def lengths(prompt, size):
    """The first rollout of every third prompt is much longer than all others."""
    return [(90 if prompt % 3 == 0 and place == 0 else 5 + place, float(place % 2)) for place in range(size)]


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def step_of(generator):
    samples, *_ = generator.generate_samples()
    return [made.sample for made in samples]


def halfway(make_generator):
    generator = make_generator(12, lengths, **POOL)
    trained = step_of(generator)
    running = {number: parts.left_on for number, parts in generator.flight.running.items()}
    assert running and any(len(left) == 1 for left in running.values())
    return generator, trained, running


def test_rollouts_that_have_ended_are_kept_and_others_go_on_from_their_tokens(make_generator):
    generator, trained, running = halfway(make_generator)
    saved = through_a_file(generator.state_dict())
    begun = {(share.number, place): 0 for share in generator.ray.shares for place in share.places}
    resumed = make_generator(12, lengths, **POOL)
    resumed.load_state_dict(saved)
    resumed.flight.weights = resumed.planner.steps
    shares = resumed.ray.shares = []
    trained += step_of(resumed)
    going_on = [share for share in shares if share.number in running]
    assert {share.number: len(share.places) for share in going_on} == {n: len(left) for n, left in running.items()}
    for share in going_on:
        assert begun.keys() >= {(share.number, place) for place in share.places}
    assert sum(len(begun.tokens) for share in going_on for begun in share.begun.values()) > 4
    for _ in range(4):
        resumed.flight.weights += 1  # the trainer has trained a step
        trained += step_of(resumed)
    counts = np.unique([int(sample.prompt) for sample in trained], return_counts=True)[1]
    assert (counts == 2 * 4).all()  # episodes
    longest = [sample for sample in trained if sample.response_length == 90]
    assert len(longest) == 2 * 4  # a prompt in three, in each episode


def test_a_checkpoint_that_is_not_due_puts_prompts_back(make_generator):
    generator, _, running = halfway(make_generator)
    state = generator.state_dict(is_due=False)["samples_generator"]
    assert state["running"] == [] and len(state["returned"]) >= len(running)


def test_groups_that_the_resumed_run_cannot_train_are_rolled_out_again(make_generator):
    generator, _, running = halfway(make_generator)
    saved = through_a_file(generator.state_dict())
    for others in (
        {"group_sizes": [8], "rollout__n_samples_per_prompt": 8},
        {"rollout__pool": None},
        {"algo__advantage__is_correction_level": "token"},
    ):
        resumed = make_generator(12, lengths, **{**POOL, **others})
        resumed.load_state_dict(through_a_file(saved))
        begun = {number for number, parts in generator.flight.running.items() if len(parts.left_on) < 4}
        assert begun and not begun & resumed.flight.running.keys()  # others may go on, which have no token yet
        waiting = {prompt.text for prompt in resumed.queue._put_back}
        assert {generator.flight.running[number].group.prompt.text for number in begun} <= waiting


@pytest.mark.parametrize("seed", range(12))
def test_however_often_it_is_resumed_every_prompt_is_trained_once_an_episode(make_generator, seed):
    rng = random.Random(seed)
    known = {}

    def respond(prompt, size):  # a prompt's responses are as long after a resume
        draw = lambda: 80 if rng.random() < 0.1 else rng.randint(1, 9)  # noqa: E731
        return known.setdefault((prompt, size), [(draw(), float(place % 2)) for place in range(size)])

    generator, trained, ages = make_generator(12, respond, engines=rng.choice([1, 3]), **POOL), [], []
    for number in range(6):
        for _ in range(5):  # the trainer's loop asks again where an episode is over
            if samples := step_of(generator):
                break
        assert len(samples) == 16
        trained += samples
        ages.append(generator.metrics["rollout/age_max"])
        generator.flight.weights = max(number - rng.randint(0, 1), generator.flight.weights)
        if rng.random() < 0.5:
            saved = through_a_file(generator.state_dict(is_due=rng.random() < 0.8))
            generator = make_generator(12, respond, engines=rng.choice([1, 2]), **POOL)
            generator.load_state_dict(saved)
            generator.flight.weights = generator.planner.steps
    counts = np.unique([int(sample.prompt) for sample in trained], return_counts=True)[1]
    assert (counts == 2 * 4).all() and max(ages) <= 3

"""The scheduler without Ray or vLLM: engines that answer at once with responses of given lengths and scores."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

import openrlhf_sagc.rollout as rollout
from openrlhf_sagc.rollout import GROUP_SIZE, StragglerAwareSamplesGenerator, group_sizes_of

SIZES, BATCH_SIZE, N_SAMPLES = [4, 8], 4, 4  # 16 samples a step: 4 prompts at size 4, 2 at size 8


class Prompts:
    """A dataloader of prompts "0", "1", ..., one at a time."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter([([""], [str(i)], [""], [None]) for i in range(self.count)])


@pytest.fixture
def make_generator(monkeypatch):
    """make_generator(prompts, respond, filtering, episodes): respond(prompt, size) -> [(length, score), ...]."""
    monkeypatch.setattr(rollout.ray, "wait", lambda pending, **_: (pending[:1], pending[1:]))
    monkeypatch.setattr(rollout.ray, "get", lambda ref: ref)

    def make(prompts, respond=lambda prompt, size: [(10, 1.0)] * size, filtering=False, episodes=1):
        sagc = SimpleNamespace(
            group_sizes=SIZES, straggler_ratio=2.5, max_straggler_rate=0.2, tradeoff=2.0, discount=0.98
        )
        args = SimpleNamespace(
            rollout=SimpleNamespace(batch_size=BATCH_SIZE, n_samples_per_prompt=N_SAMPLES, sagc=sagc),
            train=SimpleNamespace(batch_size=8, num_episodes=episodes, max_epochs=1),
            algo=SimpleNamespace(dynamic_filtering_enable=filtering, dynamic_filtering_range=(0.0, 1.0)),
            vllm=SimpleNamespace(enable_sleep=False),
        )
        generator = StragglerAwareSamplesGenerator(SimpleNamespace(args=args), Prompts(prompts), None, None, [])
        generator.drawn = []

        def dispatch(prompts, labels, *, images, n_samples_per_prompt):
            generator.drawn += map(int, prompts)
            return [[(prompt, *answer) for answer in respond(int(prompt), n_samples_per_prompt)] for prompt in prompts]

        def experience(response):
            prompt, length, score = response
            return Experience(
                prompts=[prompt], action_mask=torch.ones(1, length), scores=torch.tensor([score]), info={}
            )

        generator._dispatch_prompts_to_vllm = dispatch
        generator._process_response_into_experience = experience
        return generator

    return make


def run_episode(generator):
    """The steps of one episode as the trainer takes them: [(samples, pass rate, prompts consumed), ...]."""
    steps = []
    while True:
        samples, pass_rate, consumed, exhausted = generator.generate_samples()
        if samples:
            steps.append((samples, pass_rate, consumed))
        if exhausted:
            return steps


def test_first_step_has_the_flags_size_and_the_next_the_controllers(make_generator):
    generator = make_generator(12)
    first, *_ = generator.generate_samples()
    assert group_sizes_of(first) == [4] * 4
    assert generator.metrics["sagc/group_size"] == 4
    second, _, consumed, _ = generator.generate_samples()  # no stragglers: the largest size
    assert group_sizes_of(second) == [8] * 2
    assert consumed == 2
    assert all(sample.info[GROUP_SIZE] == 8 for sample in second)


def test_groups_are_observed_before_they_are_filtered(make_generator):
    """Odd prompts have a straggler and are all wrong: each is dropped and replaced, and still counts."""

    def respond(prompt, size):
        return [(10, 0.0)] * (size - 1) + [(90, 0.0)] if prompt % 2 else [(10, 0.0)] + [(10, 1.0)] * (size - 1)

    generator = make_generator(20, respond, filtering=True)
    samples, pass_rate, consumed, exhausted = generator.generate_samples()
    assert [sample.prompts[0] for sample in samples[::4]] == ["0", "2", "4", "6"]
    assert (consumed, exhausted) == (7, False)
    assert pass_rate == pytest.approx(100 * 4 / 7)
    assert generator.metrics["sagc/straggler_rate"] == pytest.approx(3 / 7)
    assert generator.metrics["rollout/response_length_max"] == 90


@pytest.mark.parametrize("prompts, drawn", [(6, 6), (7, 8), (8, 8)])
def test_every_step_is_full_and_no_prompt_is_left_out(make_generator, prompts, drawn):
    """After the first step (four prompts) a step takes two: an odd number is filled up from the next episode."""
    generator = make_generator(prompts)
    steps = run_episode(generator)
    assert all(len(samples) == 16 for samples, _, _ in steps)
    assert generator.drawn == [i % prompts for i in range(drawn)]


def test_the_next_episode_goes_on_where_the_last_one_borrowed(make_generator):
    generator = make_generator(7, episodes=2)
    for _ in range(2):
        run_episode(generator)
    assert generator.drawn == [i % 7 for i in range(14)]  # 14 prompts are 7 full steps: none borrowed at the end


def test_refills_go_on_into_the_next_episode(make_generator):
    def respond(prompt, size):  # prompt 2 is never solved
        return [(10, float(prompt != 2 and i > 0)) for i in range(size)]

    generator = make_generator(5, respond, filtering=True)
    samples, _, consumed, exhausted = generator.generate_samples()
    assert (len(samples), consumed, exhausted) == (16, 5, False)
    generator = make_generator(4, respond, filtering=True)
    samples, _, consumed, exhausted = generator.generate_samples()
    assert (len(samples), consumed, exhausted) == (16, 5, True)
    assert generator.drawn == [0, 1, 2, 3, 0]


def test_a_step_that_drops_as_many_groups_as_there_are_prompts_ends_with_an_error(make_generator):
    generator = make_generator(6, lambda prompt, size: [(10, 1.0)] * size, filtering=True)
    with pytest.raises(RuntimeError, match=r"dynamic_filtering_range \[0.0, 1.0\] dropped 6 groups.* 0 of 4"):
        generator.generate_samples()


def test_unscored_groups_are_kept(make_generator):
    generator = make_generator(4, filtering=True)
    process = generator._process_response_into_experience

    def unscored(response):
        experience = process(response)
        experience.scores = None
        return experience

    generator._process_response_into_experience = unscored
    assert len(generator.generate_samples()[0]) == 16


def test_learning_rate_schedule_covers_the_run_at_the_largest_size(make_generator):
    generator = make_generator(7, episodes=3)
    # 21 prompts x 8 samples = 168, 11 steps of 16 samples, two optimizer steps each.
    assert generator.max_steps == 22
    steps = sum(len(run_episode(generator)) for _ in range(3))
    assert steps * 2 <= generator.max_steps


def test_warns_once_when_the_limit_is_out_of_reach(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    generator = make_generator(400, lambda prompt, size: [(10, 1.0)] * (size - 1) + [(99, 1.0)])
    for _ in range(40):
        generator.generate_samples()
    (warning,) = warnings
    assert "--rollout.sagc.max_straggler_rate 0.2 is out of reach" in warning and "groups of 4" in warning

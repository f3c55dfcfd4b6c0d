"""The scheduler's steps, episodes and state, on the engines of fake_engines.py."""

import io
import itertools
import json
from contextlib import suppress
from dataclasses import fields

import numpy as np
import pytest
import torch
from fake_engines import ONE_SIZE, run_episode
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

import openrlhf_sagc.driver.rollout as rollout_module
from openrlhf_sagc.driver.experience import group_sizes_of
from openrlhf_sagc.driver.samples import Sample
from openrlhf_sagc.driver.step_seconds import StepClock


def test_first_step_has_the_flags_size_and_the_next_the_controllers(make_generator):
    generator = make_generator(12)
    first, *_ = generator.generate_samples()
    assert group_sizes_of(first) == [4] * 4
    assert generator.metrics["sagc/group_size"] == 4
    second, _, consumed, _ = generator.generate_samples()  # no stragglers: the largest size
    assert group_sizes_of(second) == [8] * 2
    assert consumed == 2
    assert all(sample.group_size == 8 for sample in second)


@pytest.mark.parametrize("prompts, drawn", [(6, 6), (7, 8), (8, 8)])
def test_every_step_is_full_and_no_prompt_is_left_out(make_generator, prompts, drawn):
    """After the first step (four prompts) a step takes two: an odd number is filled up from the next episode."""
    generator = make_generator(prompts)
    steps = run_episode(generator)
    assert all(len(samples) == 16 for samples, _, _ in steps)
    assert generator.drawn == [i % prompts for i in range(drawn)]


def test_the_next_episode_goes_on_where_the_last_one_borrowed(make_generator):
    generator = make_generator(7)
    for _ in range(2):
        run_episode(generator)
    assert generator.drawn == [i % 7 for i in range(14)]  # 14 prompts are 7 full steps: none borrowed at the end


def test_hold_prompts_keeps_the_prompts_of_a_step(make_generator):
    generator = make_generator(10, hold="prompts")
    steps = run_episode(generator)
    assert [len(samples) for samples, _, _ in steps] == [16, 32, 32]  # sizes 4, 8, 8
    assert [consumed for _, _, consumed in steps] == [4, 4, 4]
    assert generator.drawn == [*range(10), 0, 1]


def test_samples_carry_the_share_of_prompts_used_before_their_step(make_generator):
    generator = make_generator(10, hold="prompts")  # two episodes: 20 prompts
    first, second, third = (samples for samples, _, _ in run_episode(generator))
    assert {sample.step.progress for sample in first} == {0}
    assert {sample.step.progress for sample in second} == {0.2}
    assert {sample.step.progress for sample in third} == {0.4}


@pytest.mark.parametrize("hold", ["samples", "prompts"])
@pytest.mark.parametrize("stop", range(6))
def test_resumed_generator_goes_on_as_the_uninterrupted_one(make_generator, hold, stop):
    def respond(prompt, size):  # prompts 0, 3, 6, ... have a straggler, prompts 5 and 10 are never solved
        return [(40 if prompt % 3 == 0 else 10, 0.0)] + [(10, float(prompt % 5 > 0 or prompt == 0))] * (size - 1)

    def take(generator, count):
        steps = [(group_sizes_of(generator.generate_samples()[0]), generator.metrics) for _ in range(count)]
        # A resumed run begins to collect the shares of its last 100 steps anew.
        return [
            (sizes, {name: value for name, value in metrics.items() if "_tenth_" not in name})
            for sizes, metrics in steps
        ]

    make = lambda: make_generator(11, respond, filtering=True, hold=hold, max_straggler_rate=0.3)  # noqa: E731
    straight, killed, resumed = make(), make(), make()
    expected = take(straight, 8)
    take(killed, stop)
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    assert take(resumed, 8 - stop) == expected[stop:]
    assert killed.drawn + resumed.drawn == straight.drawn


@pytest.mark.parametrize(
    "state",
    [{"data_loader_state_dict": {"_snapshot": {}}}, {"data_loader_state_dict": {}}],
)
def test_checkpoint_of_a_run_without_group_control_is_refused(make_generator, state):
    with pytest.raises(
        ValueError, match="saved by OpenRLHF without the scheduler: resume with python -m openrlhf_sagc.off"
    ):
        make_generator(8).load_state_dict(state)


def test_checkpoint_serves_a_run_without_group_control(make_generator):
    """OpenRLHF's loops read where the dataloader was."""
    generator = make_generator(8)
    generator.generate_samples()
    assert generator.state_dict()["data_loader_state_dict"] == {"next": 4}


def change_responses(generator, change):
    """Every response of the engines gets the fields change(response)."""
    respond = generator.ray.respond
    generator.ray.respond = lambda ref: [response | change(response) for response in respond(ref)]


def test_groups_are_known_by_their_number_whatever_an_agent_says_its_prompt_was(make_generator):
    generator = make_generator(12)
    observations = itertools.count()
    change_responses(generator, lambda response: {"prompt": f"observation {next(observations)}"})
    assert group_sizes_of(generator.generate_samples()[0]) == [4] * 4


def test_a_rewards_own_logs_keep_their_names_and_stay_out_of_the_training(make_generator):
    generator = make_generator(12)
    change_responses(generator, lambda response: {"extra_logs": {"group_size": 99.0, "progress": 7.0}})
    samples = generator.generate_samples()[0]
    assert group_sizes_of(samples) == [4] * 4
    assert (generator.metrics["group_size"], generator.metrics["progress"]) == (99, 7)


def test_logs_that_some_samples_have_are_averaged_over_those_and_survive_a_checkpoint(make_generator, monkeypatch):
    warnings, numbers = [], itertools.count()
    monkeypatch.setattr(rollout_module.logger, "warning", warnings.append)

    def logs(response):
        number = next(numbers)
        note = {"extra_logs_left_out": "extra_logs['why'] is 'good'"} if number % 4 else {}
        return {"extra_logs": {"solved": 3.0} if number % 4 == 0 else {}} | note

    def respond(prompt, size):  # half of the prompts have a signal, until all have one: a step is left with too many
        signal = prompt % 2 == 0 or prompt >= 60
        return [(5 + prompt * 37 % 83, float(signal and i % 2)) for i in range(size)]

    flags = {"algo__dynamic_filtering_surplus": "keep", "group_sizes": [4]}
    generator, resumed = make_generator(200, respond, True, **flags), make_generator(200, respond, True, **flags)
    change_responses(generator, logs)
    while not generator.flight.accepted:
        generator.generate_samples()
        assert generator.metrics["solved"] == 3.0 and generator.metrics["rollout/reward_failures"] == 0
    resumed.load_state_dict(generator.state_dict())
    change_responses(resumed, lambda response: {"extra_logs": {}})
    resumed.generate_samples()
    assert resumed.metrics["solved"] == 3.0  # of the groups that were kept
    (line,) = {warning for warning in warnings if "extra_logs" in warning}
    assert (
        line
        == "extra_logs['why'] is 'good': of extra_logs only finite numbers under names are logged; no reward is lost"
    )
    assert warnings.count(line) == 2  # once a run


def test_prompts_that_are_no_texts_are_rolled_out_as_they_are(make_generator):
    """An agent may take chats; whoever cannot loses the group in the engine."""
    generator = make_generator(12, rollout__length_aware_dispatch=True, group_sizes=[4])
    take = generator.queue._source.take

    def chats(count):
        rows, ended = take(count)
        return [(int(text) if int(text) % 2 else text, *rest) for text, *rest in rows], ended

    generator.queue._source.take = chats
    assert len(generator.generate_samples()[0]) == 16


def test_state_is_plain_data_that_is_read_without_this_package(make_generator):
    """torch.load refuses classes here; a JSON file has the rest once the tensors are lists."""

    def respond(prompt, size):  # half of the prompts have a signal, until all have one: a step is left with too many
        signal = prompt % 2 == 0 or prompt >= 60
        return [(5 + prompt * 37 % 83, float(signal and i % 2)) for i in range(size)]

    flags = {"algo__dynamic_filtering_surplus": "keep", "rollout__length_aware_dispatch": True, "group_sizes": [4]}
    killed, resumed = make_generator(200, respond, True, **flags), make_generator(200, respond, True, **flags)
    while not killed.flight.accepted:
        killed.generate_samples()
    file = io.BytesIO()
    torch.save(killed.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    json.dumps(state, default=torch.Tensor.tolist)
    resumed.load_state_dict(state)
    kept = [
        [(group.number, group.prompt, [sample.reward for sample in group.samples]) for group in run.flight.accepted]
        for run in (killed, resumed)
    ]
    assert kept[0] == kept[1]
    samples = [[s for group in run.flight.accepted for s in group.samples] for run in (killed, resumed)]
    for saved, loaded in zip(*samples, strict=True):
        assert loaded.tokens_T.dtype == np.int32
        for field in fields(Sample):
            np.testing.assert_array_equal(getattr(loaded, field.name), getattr(saved, field.name))


@pytest.mark.parametrize("method", ["auto", "sort", "stop"])
def test_state_stays_as_it_is_while_the_run_goes_on(make_generator, method):
    """A run that gives a step up saves the state of the one before."""

    def respond(prompt, size):
        signal = prompt % 3 != 0
        return [(5 + prompt * 37 % 83, float(signal and i % 2)) for i in range(size)]

    flags = {"algo__dynamic_filtering_surplus": "keep", "rollout__length_aware_dispatch": True}
    tail = {"rollout__tail_batching__enable": True, "rollout__tail_batching__method": method}
    generator = make_generator(64, respond, True, objective="throughput", **flags, **tail)
    for _ in range(9):
        generator.generate_samples()
        state = generator.state_dict()
        before = json.dumps(state, default=list)
        generator.planner.timed(1.0)
        generator.generate_samples()
        assert json.dumps(state, default=list) == before


def test_the_seconds_from_step_to_step_teach_the_model_but_not_those_of_the_first_or_of_evaluation(
    make_generator, monkeypatch
):
    generator = make_generator(40, objective="throughput")
    ticks = iter([10.0, 100.0, 130.0, 140.0, 150.0, 175.0])
    generator.clock = StepClock(lambda: next(ticks))
    timed, model = [], generator.planner.step_model
    monkeypatch.setattr(
        model, "timed", lambda seconds, timed_by=model.timed: (timed.append(seconds), timed_by(seconds))
    )
    monkeypatch.setattr(SamplesGenerator, "generate_eval_samples", lambda self, **_: [])
    for _ in range(3):
        generator.generate_samples()
    generator.generate_eval_samples()
    generator.generate_samples()
    assert timed == [30.0, 175.0 - 130.0 - 10.0]
    assert model.state_dict()["unit"] == 30.0


def test_the_call_that_ends_an_episode_is_no_step(make_generator):
    """Episodes of one step; the first step's seconds are left out, the empty call's belong to none."""
    generator = make_generator(4, objective="throughput")
    now, timed = [0.0], []
    generator.clock = StepClock(lambda: now[0])
    generator.planner.timed = timed.append
    for _ in range(6):
        samples, *_ = generator.generate_samples()
        now[0] += 100.0 if samples else 0.25
    assert timed == [100.0, 100.0]


def test_the_size_stays_until_a_step_was_timed(make_generator):
    """The seconds of the first step teach nothing, so that those of the second are the first ones known."""
    for objective, sizes in (("throughput", [4, 4, 4, 8]), ("size", [4, 8, 8, 8])):
        generator = make_generator(400, objective=objective)
        assert [group_sizes_of(generator.generate_samples()[0])[0] for _ in sizes] == sizes


def test_the_objective_decides_between_sizes(make_generator):
    """All responses take equally long, so that size costs nothing; or twice as long each step that the size is 8."""
    for cost, chosen in ((1.0, 8), (3.0, 4)):
        generator = make_generator(400, objective="throughput")
        now, sizes = [0.0], []
        generator.clock = StepClock(lambda: now[0])
        for _ in range(20):
            samples, *_ = generator.generate_samples()
            sizes += group_sizes_of(samples)[:1]
            now[0] += 10 * (cost if sizes[-1] == 8 else 1.0)
        assert sizes[-10:] == [chosen] * 10
        assert {4, 8} == set(sizes)


def warnings_of(generator, monkeypatch, steps=1):
    warnings = []
    monkeypatch.setattr(rollout_module.logger, "warning", warnings.append)
    for _ in range(steps):
        with suppress(RuntimeError):
            generator.generate_samples()
    return [warning for warning in warnings if "nothing to learn" in warning]


@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("reward", [0.0, 1.0, -0.25])
def test_a_first_step_of_equal_rewards_is_said_once_with_its_usual_reasons(
    make_generator, monkeypatch, filtering, reward
):
    generator = make_generator(40, lambda prompt, size: [(10, reward)] * size, filtering=filtering, **ONE_SIZE)
    (warning,) = warnings_of(generator, monkeypatch, steps=1 if filtering else 2)
    assert f"rewards of the first step are {reward:g}, so" in warning
    for reason in ("signal.alarm", "parsing_timeout=None", "--data.label_key", "--rollout.max_new_tokens"):
        assert reason in warning


def test_rewards_that_differ_in_the_first_step_or_are_equal_later_are_no_news(make_generator, monkeypatch):
    def respond(prompt, size):
        return [(10, 1.0 if prompt == 3 else 0.0)] * size

    assert not warnings_of(make_generator(40, respond, **ONE_SIZE), monkeypatch, steps=3)


def test_a_first_step_without_a_reward_is_no_news_of_equal_ones(make_generator, monkeypatch):
    generator = make_generator(40, lambda prompt, size: [(10, 1.0, None, "E")] * size, reward__max_failure_share=1.0)
    assert not warnings_of(generator, monkeypatch)

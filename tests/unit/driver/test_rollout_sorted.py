"""Sorted steps of the scheduler, on the engines of fake_engines.py, where prompt n is known by its text "n"."""

import json

import pytest
from fake_engines import prompts_of

from openrlhf_sagc.decisions.records import ROLLOUT, Prompt
from openrlhf_sagc.driver.trace import prompt_id

LENGTHS = [10, 90, 30, 70, 50] * 8  # of 40 prompts


def flags(method="sort", **more):
    tail = {"rollout__tail_batching__enable": True, "rollout__tail_batching__method": method}
    return {"group_sizes": [4], "rollout__batch_size": 4, **tail, **more}


def respond(prompt, size):
    return [(LENGTHS[prompt], float(place % 2)) for place in range(size)]


@pytest.fixture
def history(tmp_path):
    """The trace of an earlier run."""
    rows = [f"{prompt_id(Prompt(str(n), '', None, 1))},{n},{tokens}\n" for n, tokens in enumerate(LENGTHS)]
    file = tmp_path / "earlier.csv"
    file.write_text("prompt_id,sample_id,tokens\n" + "".join(rows))
    return str(file)


def test_an_earlier_run_sorts_steps_from_the_first_one_on(make_generator, history):
    """Eight prompts of each length make two steps of four: no step waits for a longer prompt."""
    generator, clocks = make_generator(40, respond, **flags(rollout__length_history=history)), [0.0]
    for _ in range(10):
        samples = generator.generate_samples()[0]
        assert len({LENGTHS[prompt] for prompt in prompts_of(samples)}) == 1
        clocks.append(generator.ray.clock)
        assert generator.metrics["tail_batching/sorted_round"] == 1
        assert generator.metrics["tail_batching/wasted_tokens"] == 0
    seconds = [end - begin for begin, end in zip(clocks, clocks[1:])]
    assert sorted(seconds) == sorted(LENGTHS[:5] * 2) != seconds
    assert generator.metrics["tail_batching/explained"] > 0.8


def test_a_run_that_is_killed_in_a_frame_goes_on_in_it(make_generator, history):
    straight = make_generator(40, respond, **flags(rollout__length_history=history))
    steps = [prompts_of(straight.generate_samples()[0]) for _ in range(9)]
    killed = make_generator(40, respond, **flags(rollout__length_history=history))
    for _ in range(4):
        killed.generate_samples()
    resumed = make_generator(40, respond, **flags())
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    assert [prompts_of(resumed.generate_samples()[0]) for _ in range(5)] == steps[4:]


def test_a_run_that_goes_on_without_tail_batching_loses_no_prompt(make_generator, history):
    killed = make_generator(40, respond, **flags(rollout__length_history=history))
    trained = [prompt for _ in range(4) for prompt in prompts_of(killed.generate_samples()[0])]
    resumed = make_generator(40, respond, group_sizes=[4])
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    trained += [prompt for _ in range(6) for prompt in prompts_of(resumed.generate_samples()[0])]
    assert sorted(trained) == list(range(40))


def test_the_default_says_what_it_chose(make_generator, history, monkeypatch):
    said = []
    monkeypatch.setattr("openrlhf_sagc.driver.rollout.logger.info", said.append)

    def one_is_long(prompt, size):
        return [(90 if prompt % 4 == 1 else 5, float(place % 2)) for place in range(size)]

    generator = make_generator(40, one_is_long, **flags("auto", rollout__length_history=history))
    for _ in range(3):
        generator.generate_samples()
    assert said and all(line.startswith("from step ") for line in said)
    assert "until more is known" in said[0] and all("forecast plain steps" in line for line in said[1:])
    assert generator.metrics["tail_batching/plain_round"] in (0, 1)


def test_an_asynchronous_run_sorts_the_same_and_knows_the_age_of_each_group(make_generator, history):
    """Two steps are rolled out with each sync's weights, as with a queue of two."""
    more = {"rollout__length_history": history}
    waits = make_generator(40, respond, **flags(**more))
    runs_on = make_generator(40, respond, **flags(**more, train__async_enable=True))
    for step in range(10):
        runs_on.flight.weights = step // 2
        samples = runs_on.generate_samples()[0]
        assert prompts_of(samples) == prompts_of(waits.generate_samples()[0])
        assert (
            runs_on.metrics["rollout/age_max"] == step - step // 2
            and runs_on.metrics["tail_batching/wasted_tokens"] == 0
        )


def test_trajectories_of_an_agent_that_fails_are_sorted_and_lose_their_group_alone(make_generator, history):
    """The agent of prompt 7 raises in its first episode, whose step asks for another prompt of like length."""
    generator = make_generator(40, respond, **flags(rollout__length_history=history))
    answer = generator.ray.respond

    def fails(ref):
        responses = answer(ref)
        if ref.prompt != "7":
            return responses
        lost = responses[0][ROLLOUT]._replace(finished=False, stopped=False, failure="ValueError: no tool")
        return [{"prompt": "7", "label": "", "images": None, ROLLOUT: lost}] * len(responses)

    generator.ray.respond = fails
    trained, exhausted = [], False
    while not exhausted:
        samples, _, _, exhausted = generator.generate_samples()
        trained += prompts_of(samples)
        assert generator.metrics["tail_batching/sorted_round"] == 1
    assert set(range(40)) - set(trained) == {7} and generator.planner.predictor.predict("7\0") == pytest.approx(
        30, rel=0.2
    )

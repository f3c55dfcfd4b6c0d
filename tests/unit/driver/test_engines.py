"""What the engines are told, and when: on the engines of fake_engines.py."""

import itertools
from concurrent.futures import Future
from itertools import repeat
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from fake_engines import ONE_SIZE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.exceptions import RayActorError, RayTaskError

import openrlhf_sagc.driver.engines as engines_module
from openrlhf_sagc.decisions.records import Prompt
from openrlhf_sagc.engine.rollouts import stop_rollouts

FIVE_OF_A_PROMPT = {
    "rollout__tail_batching__enable": True,
    "rollout__tail_batching__method": "stop",
    "rollout__tail_batching__prompt_ratio": 1.0,
    "rollout__tail_batching__response_ratio": 1.25,
}


def begun(generator, places, rollouts=None):
    """A step, and groups of its first prompts that run, with these engines."""
    step = generator.planner.begin(generator.queue)
    if rollouts:
        step.round = step.round._replace(rollouts=rollouts)
    groups = step._numbered([Prompt(str(number), "", None, 1) for number in range(len(places))], places, repeat(1))
    step.flight.run_on(groups)
    for group in groups:
        step._places.run(group)
    generator.engines.resume({})
    generator.engines.dispatch(groups)
    return step, groups


def returned(generator, step):
    """The next groups that come back."""
    while not (back := step.receive(generator.engines.ended())):
        generator.engines.stop_surplus(step.take_surplus())
    return back


def stopped(generator, step):
    """The groups that come back from a stop."""
    return [back for ended in generator.engines.stop() for back in step.receive(ended)]


@pytest.fixture
def make(make_generator):
    return lambda **flags: make_generator(
        40, lambda prompt, size: [(10 + prompt, 1.0)] * size, engines=3, **ONE_SIZE, **flags
    )


@pytest.fixture
def generator(make):
    return make()


def test_an_engine_gets_one_call_for_all_that_is_dispatched_to_it_together(generator):
    step, groups = begun(generator, [(2,) * 4, (1,) * 4, (0, 2, 0, 2), (2,) * 4])
    assert generator.dispatched_to == [["0"] * 4 + ["2"] * 2 + ["3"] * 4, ["1"] * 4, ["2"] * 2]
    back = [back.group for _ in groups for back in returned(generator, step)]
    assert back == groups  # the shorter the sooner


def test_no_engine_is_asked_where_a_group_is_placed(make, monkeypatch):
    """Six groups of four on three engines."""
    generator = make(rollout__batch_size=6)
    for actor in generator.vllm_engines:
        monkeypatch.delattr(actor, "get_num_unfinished_requests")
    generator.generate_samples()
    assert [len(prompts) for prompts in generator.dispatched_to] == [8] * 3


def test_settings_are_those_that_openrlhf_sends_with_every_prompt(generator, monkeypatch):
    sent = []
    for actor in generator.vllm_engines:
        theirs = actor.generate_responses.remote

        def note(*message, theirs=theirs, **settings):
            sent.append(settings)
            return theirs(*message, **settings)

        monkeypatch.setattr(actor.generate_responses, "remote", note)
    generator.generate_samples(temperature=0.5, max_new_tokens=7, max_len=90)
    settings = next(settings for settings in sent if settings)
    assert settings.keys() == {"label", "sampling_params", "max_length", "images"}
    assert settings["max_length"] == 90
    assert (settings["sampling_params"].temperature, settings["sampling_params"].max_tokens) == (0.5, 7)


def test_each_engine_gets_the_tokenizer_once(generator):
    generator.generate_samples()
    generator.generate_samples()
    assert generator.ray.tokenizers == ["tokenizer"] * 3


@pytest.mark.parametrize("partial, calls", [(False, ["pause_generation", "resume_generation"]), (True, [])])
def test_generation_pauses_for_the_update_only_where_groups_run(make, partial, calls):
    generator = make(train__partial_rollout_enable=partial)
    engines = generator.engines
    engines.pause()
    engines.resume()
    assert generator.ray.calls == []  # nothing ran
    begun(generator, [(0,) * 4])
    engines.pause()
    engines.resume()
    assert generator.ray.calls == calls


def test_all_that_runs_is_stopped_and_comes_back_with_what_it_has(generator):
    step, groups = begun(generator, [(0,) * 4, (1, 1, 2, 2), (2,) * 4])
    generator.ray.clock = 10  # prompt 0 is done, the others have a token or two to go
    back = {back.group.number: [rollout.stopped for rollout in back.rollouts] for back in stopped(generator, step)}
    assert back == {groups[0].number: [False] * 4, groups[1].number: [True] * 4, groups[2].number: [True] * 4}
    assert list(generator.engines.stop()) == []


@pytest.fixture
def make_tail(make_generator):
    """make_tail(answers) -> a generator on three engines, groups of 4 with 5 rollouts; answers as `respond` gives them."""
    flags = {**FIVE_OF_A_PROMPT, **ONE_SIZE}
    return lambda answers: make_generator(40, lambda prompt, size: answers, engines=3, **flags)


def test_the_first_rollouts_to_finish_stop_the_others_on_all_engines(make_tail):
    """The third to finish has no reward; those left are stopped with what they have, once, wherever they run."""
    generator = make_tail([(10, 1.0), (90, 1.0), (12, 0.0), (11, 0.0, None, "E"), (13, 1.0), (80, 0.0), (14, 1.0)])
    step, (group,) = begun(generator, [(0, 1, 2, 0, 1, 2, 0)], rollouts=7)
    (back,) = returned(generator, step)
    rollouts = back.rollouts
    assert back.group == group and generator.ray.clock == 14
    assert sorted(rollout.tokens for rollout in rollouts if rollout.stopped) == [14, 14]
    assert [rollout.tokens for rollout in rollouts if rollout.failure] == [11]
    assert generator.ray.stops == [[group.number]] * 2  # on the two engines with a rollout left


def test_a_call_that_does_not_hear_of_the_stop_hears_it_again(make_tail, monkeypatch):
    generator = make_tail([(10, 1.0)] * 4 + [(90, 1.0)])
    run, heard, ticks = generator.ray.run_in_engine, [], itertools.count()

    def deaf(function, *args, **kwargs):
        if function is not stop_rollouts or len(heard) == 3:
            return run(function, *args, **kwargs)
        heard.append(args)

    wait = generator.ray.wait

    def patient(pending, num_returns, timeout):
        return ([], pending) if timeout < 10 and generator.ray.clock < pending[0].end else wait(pending, 1, timeout)

    for actor in generator.vllm_engines:
        monkeypatch.setattr(actor.__ray_call__, "remote", deaf)
    monkeypatch.setattr(generator.ray, "wait", patient)
    monkeypatch.setattr(engines_module.time, "perf_counter", lambda: float(next(ticks)))
    step, (group,) = begun(generator, [(0, 1, 2, 0, 1)])
    (back,) = returned(generator, step)
    assert len(heard) == 3 and generator.ray.stops == [[group.number]]
    assert [rollout.stopped for rollout in back.rollouts].count(True) == 1 and generator.ray.clock == 10


def test_a_stop_that_was_not_heard_is_repeated_while_other_calls_come_back(make_generator, monkeypatch):
    """A rollout of the first group has 90 tokens to go; one of the others' ends every 10."""
    flags = {**FIVE_OF_A_PROMPT, **ONE_SIZE}
    generator = make_generator(
        40,
        lambda prompt, size: [(10, 1.0)] * 4 + [(90, 1.0)] if prompt == 0 else [(10 + 10 * prompt, 1.0)] * 5,
        engines=3,
        **flags,
    )
    ray, heard, ticks = generator.ray, [], itertools.count()
    run, wait = ray.run_in_engine, ray.wait

    def deaf(function, *args, **kwargs):
        heard.append(function)
        if function is not stop_rollouts or heard.count(stop_rollouts) > 1:
            return run(function, *args, **kwargs)

    for actor in generator.vllm_engines:
        monkeypatch.setattr(actor.__ray_call__, "remote", deaf)
    monkeypatch.setattr(ray, "wait", lambda pending, num_returns, timeout: wait(pending, 1, 10.0))
    monkeypatch.setattr(engines_module.time, "perf_counter", lambda: float(next(ticks)))
    step, groups = begun(generator, [(0, 1, 2, 0, 1)] * 4)
    while groups[0] not in [back.group for back in returned(generator, step)]:
        pass
    assert ray.clock <= 30


answers = st.tuples(st.integers(1, 99), st.floats(0, 1), st.none(), st.sampled_from([None, None, "E"]))


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_group_comes_back_once_and_whole(make_generator, data):
    """Any places, lengths, failures and moment of a stop: each rollout ran once."""
    rollouts = data.draw(st.integers(4, 6))
    count = data.draw(st.integers(1, 8))
    drawn = [data.draw(st.lists(answers, min_size=rollouts, max_size=rollouts)) for _ in range(count)]
    generator = make_generator(40, lambda prompt, size: drawn[prompt], engines=3, **ONE_SIZE)
    engines = generator.engines
    whole_or_split = st.integers(0, 2).map(lambda engine: (engine,) * rollouts) | st.tuples(
        *[st.integers(0, 2)] * rollouts
    )
    places = [data.draw(whole_or_split) for _ in range(count)]
    step, groups = begun(generator, places, rollouts)
    whole = data.draw(st.integers(0, count))
    back = [entry for _ in range(whole) for entry in returned(generator, step)] + stopped(generator, step)
    assert sorted(entry.group.number for entry in back) == [group.number for group in groups]
    for place, entry in enumerate(back):
        records = entry.rollouts
        assert len(records) == rollouts
        for rollout, (tokens, *_) in zip(records, drawn[entry.group.number]):  # each in its place
            assert rollout.tokens == tokens if rollout.finished else rollout.tokens < tokens
        rewarded = sum(rollout.finished and not rollout.failure for rollout in records)
        if place < whole:  # it came back by itself
            assert not any(rollout.stopped for rollout in records) or rewarded >= 4 < rollouts
    assert not step.flight.running and not step.flight.loads.total() and not step.take_surplus()
    assert not engines._running and not engines._rollouts.total() and not engines._asked and not engines._late


def test_groups_that_do_not_come_back_from_a_stop_end_the_run(generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(engines_module.logger, "warning", warnings.append)
    monkeypatch.setattr(generator.ray, "wait", lambda pending, **kwargs: ([], pending))
    begun(generator, [(1,) * 4, (1, 0, 1, 0)])
    with pytest.raises(
        RuntimeError, match="8 rollouts were stopped and have not come back for 10 minutes: an agent .*load"
    ):
        list(generator.engines.stop())
    assert len(warnings) == 1 and "have not come back for 1 minutes" in warnings[0]


def test_an_engine_that_dies_ends_the_run(generator, monkeypatch):
    def dead(ref):
        raise RayActorError(error_msg="The actor died.\nclass_name: RolloutRayActor")

    monkeypatch.setattr(generator.ray, "respond", dead)
    with pytest.raises(RayActorError, match="class_name: RolloutRayActor"):
        generator.generate_samples()


def test_requests_that_agents_have_left_behind_end_before_the_weights_change(make, monkeypatch):
    agent = {"train__agent_func_path": "agent.py", "rollout__agent_timeout": None}
    generator = make(**agent)
    generator.ray.left_over = [0, 0, 1, 0, 2, 0]  # by look at one of three engines, from the end
    generator.engines.pause()
    assert not generator.ray.left_over and generator.ray.calls == []
    generator.ray.left_over = [1] * 300
    monkeypatch.setattr(engines_module, "LEFT_OVER_WAIT", 0.0)
    with pytest.raises(
        RuntimeError, match="3 requests that --train.agent_func_path agent.py has left behind do not end"
    ):
        generator.engines.pause()
    generator.ray.left_over = left_over = [1]
    begun(generator, [(0,) * 4])
    generator.engines.pause()  # what runs goes on after the sync, with its own requests
    assert left_over == [1] and generator.ray.calls == ["pause_generation"]


def test_a_dispatch_that_its_engine_could_not_take_ends_the_run(generator, monkeypatch):
    """Nothing of it would ever end, and who waits for that would wait for ever."""

    def refuse(message, *_, **settings):
        error = Future()
        error.set_exception(RayTaskError("generate_responses", "", ModuleNotFoundError("a label's class")))
        return SimpleNamespace(future=lambda: error if settings else Future())

    monkeypatch.setattr(generator.vllm_engines[0].generate_responses, "remote", refuse)
    monkeypatch.setattr(generator.engines, "_back", SimpleQueue())
    with pytest.raises(RayTaskError):
        generator.generate_samples()

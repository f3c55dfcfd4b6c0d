"""What the engines are told, and when: on the engines of fake_engines.py."""

import itertools
from concurrent.futures import Future
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from fake_engines import ONE_SIZE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.exceptions import RayActorError, RayTaskError

import openrlhf_sagc.driver.engines as engines_module
from openrlhf_sagc.actors.rollouts import stop_rollouts
from openrlhf_sagc.decisions.records import ROLLOUT, Prompt

FIVE_OF_A_PROMPT = {
    "rollout__tail_batching__enable": True,
    "rollout__tail_batching__prompt_ratio": 1.0,
    "rollout__tail_batching__response_ratio": 1.25,
}


def groups_on(places, generator, step):
    """Groups of a step's first prompts, with these engines."""
    drawn = [Prompt(str(number), "", None, 1) for number in range(len(places))]
    groups = generator.planner.dispatch(step, generator.flight, drawn)
    groups = [group._replace(engines=engines) for group, engines in zip(groups, places)]
    generator.flight.running |= {group.number: group for group in groups}
    return groups


@pytest.fixture
def make(make_generator):
    return lambda **flags: make_generator(
        40, lambda prompt, size: [(10 + prompt, 1.0)] * size, engines=3, **ONE_SIZE, **flags
    )


@pytest.fixture
def generator(make):
    return make()


def test_an_engine_gets_one_call_for_all_that_is_dispatched_to_it_together(generator):
    step = generator.planner.plan(generator.flight, generator.queue)
    groups = groups_on([(2,) * 4, (1,) * 4, (0, 2, 0, 2), (2,) * 4], generator, step)
    generator.engines.dispatch(groups)
    assert generator.dispatched_to == [["0"] * 4 + ["2"] * 2 + ["3"] * 4, ["1"] * 4, ["2"] * 2]
    returned = [number for _ in groups for number, _ in generator.engines.returned()]
    assert returned == [group.number for group in groups]  # the shorter the sooner


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
    assert settings.keys() == {"label", "sampling_params", "max_length", "hf_tokenizer", "images"}
    assert (settings["max_length"], settings["hf_tokenizer"]) == (90, None)
    assert (settings["sampling_params"].temperature, settings["sampling_params"].max_tokens) == (0.5, 7)


def test_each_engine_gets_the_tokenizer_once(generator):
    generator.generate_samples()
    generator.generate_samples()
    assert generator.ray.tokenizers == ["tokenizer"] * 3


def test_the_engines_hear_of_a_limit_once_and_of_a_new_one_again(generator):
    for limit in (None, 4, 4, None, 4):
        generator.engines.resume(limit)
    assert generator.ray.told == [limit for limit in (4, None, 4) for _ in range(3)]


@pytest.mark.parametrize("partial, calls", [(False, ["pause_generation", "resume_generation"]), (True, [])])
def test_generation_pauses_for_the_update_only_where_groups_run(make, partial, calls):
    generator = make(train__partial_rollout_enable=partial)
    engines = generator.engines
    engines.pause()
    engines.resume(None)
    assert generator.ray.calls == []  # nothing ran
    step = generator.planner.plan(generator.flight, generator.queue)
    engines.dispatch(groups_on([(0,) * 4], generator, step))
    engines.pause()
    engines.resume(None)
    assert generator.ray.calls == calls


def test_all_that_runs_is_stopped_and_comes_back_with_what_it_has(generator):
    step = generator.planner.plan(generator.flight, generator.queue)
    groups = groups_on([(0,) * 4, (1, 1, 2, 2), (2,) * 4], generator, step)
    generator.engines.dispatch(groups)
    generator.ray.clock = 10  # prompt 0 is done, the others have a token or two to go
    stopped = {
        number: [response[ROLLOUT].stopped for response in responses] for number, responses in generator.engines.stop()
    }
    assert stopped == {groups[0].number: [False] * 4, groups[1].number: [True] * 4, groups[2].number: [True] * 4}
    assert list(generator.engines.stop()) == []


@pytest.fixture
def make_tail(make_generator):
    """make_tail(answers) -> a generator on three engines, groups of 4 with 5 rollouts; answers as `respond` gives them."""
    flags = {**FIVE_OF_A_PROMPT, **ONE_SIZE}
    return lambda answers: make_generator(40, lambda prompt, size: answers, engines=3, **flags)


def test_the_first_rollouts_to_finish_stop_the_others_on_all_engines(make_tail):
    """The third to finish has no reward; those left are stopped with what they have, once, wherever they run."""
    generator = make_tail([(10, 1.0), (90, 1.0), (12, 0.0), (11, 0.0, None, "E"), (13, 1.0), (80, 0.0), (14, 1.0)])
    step = generator.planner.plan(generator.flight, generator.queue)
    step.round = step.round._replace(rollouts=7)
    generator.engines.resume(4)
    (group,) = groups_on([(0, 1, 2, 0, 1, 2, 0)], generator, step)
    generator.engines.dispatch([group])
    ((number, responses),) = generator.engines.returned()
    rollouts = [response[ROLLOUT] for response in responses]
    assert number == group.number and generator.ray.clock == 14
    assert sorted(rollout.tokens for rollout in rollouts if rollout.stopped) == [14, 14]
    assert [rollout.tokens for rollout in rollouts if rollout.failure] == [11]
    assert generator.ray.stops == [[number], [number]]  # on the two engines with a rollout left


def test_a_call_that_does_not_hear_of_the_stop_hears_it_again(make_tail, monkeypatch):
    generator = make_tail([(10, 1.0)] * 4 + [(90, 1.0)])
    step = generator.planner.plan(generator.flight, generator.queue)
    run, heard = generator.ray.run_in_engine, []

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
    generator.engines.resume(4)
    generator.engines.dispatch(groups_on([(0, 1, 2, 0, 1)], generator, step))
    ((number, responses),) = generator.engines.returned()
    assert len(heard) == 3 and generator.ray.stops == [[number]]
    assert [response[ROLLOUT].stopped for response in responses].count(True) == 1 and generator.ray.clock == 10


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
    step = generator.planner.plan(generator.flight, generator.queue)
    generator.engines.resume(4)
    groups = groups_on([(0, 1, 2, 0, 1)] * 4, generator, step)
    generator.engines.dispatch(groups)
    while groups[0].number not in [number for number, _ in generator.engines.returned()]:
        pass
    assert ray.clock <= 30


answers = st.tuples(st.integers(1, 99), st.floats(0, 1), st.none(), st.sampled_from([None, None, "E"]))


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_group_comes_back_once_and_whole(make_generator, data):
    """Any places, lengths, failures and moment of a stop: each rollout ran once."""
    rollouts, keep_first = data.draw(st.integers(2, 6)), data.draw(st.none() | st.integers(1, 4))
    count = data.draw(st.integers(1, 8))
    drawn = [data.draw(st.lists(answers, min_size=rollouts, max_size=rollouts)) for _ in range(count)]
    generator = make_generator(40, lambda prompt, size: drawn[prompt], engines=3, **ONE_SIZE)
    engines, flight = generator.engines, generator.flight
    step = generator.planner.plan(flight, generator.queue)
    step.round = step.round._replace(rollouts=rollouts)
    whole_or_split = st.integers(0, 2).map(lambda engine: (engine,) * rollouts) | st.tuples(
        *[st.integers(0, 2)] * rollouts
    )
    places = [data.draw(whole_or_split) for _ in range(count)]
    generator.ray.keep_first = None  # of the engines of the example before
    engines.resume(keep_first)
    groups = groups_on(places, generator, step)
    engines.dispatch(groups)
    whole = data.draw(st.integers(0, count))
    back = [entry for _ in range(whole) for entry in engines.returned()] + list(engines.stop())
    assert sorted(number for number, _ in back) == [group.number for group in groups]
    for place, (number, responses) in enumerate(back):
        records = [response[ROLLOUT] for response in responses]
        assert len(records) == rollouts
        for rollout, (tokens, *_) in zip(records, drawn[number]):  # each in its place
            assert rollout.tokens == tokens if rollout.finished else rollout.tokens < tokens
        rewarded = sum(rollout.finished and not rollout.failure for rollout in records)
        if place < whole:  # it came back by itself
            stopped = sum(rollout.stopped for rollout in records)
            assert not stopped or (keep_first is not None and rewarded >= keep_first)
    assert not engines._running and not engines._stopped and not engines._rollouts.total() and not engines._asked


def test_groups_that_do_not_come_back_from_a_stop_end_the_run(generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(engines_module.logger, "warning", warnings.append)
    monkeypatch.setattr(generator.ray, "wait", lambda pending, **kwargs: ([], pending))
    step = generator.planner.plan(generator.flight, generator.queue)
    generator.engines.dispatch(groups_on([(1,) * 4, (1, 0, 1, 0)], generator, step))
    with pytest.raises(
        RuntimeError, match="2 groups were stopped and have not come back for 10 minutes: an agent .*load"
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
    step = generator.planner.plan(generator.flight, generator.queue)
    generator.engines.dispatch(groups_on([(0,) * 4], generator, step))
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

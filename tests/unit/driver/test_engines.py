"""What the engines are told, and when: on the engines of fake_engines.py."""

import pytest
from fake_engines import ONE_SIZE
from ray.exceptions import RayActorError

import openrlhf_sagc.driver.engines as engines_module
from openrlhf_sagc.decisions.records import ROLLOUT, Prompt
from openrlhf_sagc.driver.engines import MOST_CALLS


def groups_on(places, generator, step):
    """Groups of a step's first prompts, on these engines."""
    drawn = [Prompt(str(number), "", None, 1) for number in range(len(places))]
    groups = generator.planner.dispatch(step, generator.flight, drawn)
    return [group._replace(engine=engine) for group, engine in zip(groups, places)]


@pytest.fixture
def make(make_generator):
    return lambda **flags: make_generator(
        40, lambda prompt, size: [(10 + prompt, 1.0)] * size, engines=3, **ONE_SIZE, **flags
    )


@pytest.fixture
def generator(make):
    return make()


def test_groups_go_to_their_engines_and_the_others_to_openrlhfs_placement(generator):
    step = generator.planner.plan(generator.flight, generator.queue)
    groups = groups_on([2, -1, 0, 2, -1], generator, step)
    generator.engines.dispatch(groups)
    assert generator.dispatched_to == [["1", "4"], ["2"], ["0", "3"]]
    returned = [number for _ in groups for number, _ in generator.engines.returned()]
    assert returned == [group.number for group in groups]  # the shorter the sooner


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
    engines.dispatch(groups_on([0], generator, step))
    engines.pause()
    engines.resume(None)
    assert generator.ray.calls == calls


def test_all_that_runs_is_stopped_and_comes_back_with_what_it_has(generator):
    step = generator.planner.plan(generator.flight, generator.queue)
    groups = groups_on([0, 1, 2], generator, step)
    generator.engines.dispatch(groups)
    generator.ray.clock = 10  # prompt 0 is done, the others have a token or two to go
    stopped = {
        number: [response[ROLLOUT].stopped for response in responses] for number, responses in generator.engines.stop()
    }
    assert stopped == {groups[0].number: [False] * 4, groups[1].number: [True] * 4, groups[2].number: [True] * 4}
    assert list(generator.engines.stop()) == []


def test_an_engine_has_fewer_calls_than_ray_allows_and_the_rest_follows(make_generator):
    generator = make_generator(2000, **ONE_SIZE)
    step = generator.planner.plan(generator.flight, generator.queue)
    groups = groups_on([0] * 1300, generator, step)
    engines = generator.engines
    engines.dispatch(groups)
    assert len(generator.drawn) == MOST_CALLS < 1000
    back = [number for _ in range(600) for number, _ in engines.returned()]
    assert len(generator.drawn) == MOST_CALLS + 600
    back += [number for number, _ in engines.stop()]
    assert sorted(back) == [group.number for group in groups]
    assert len(generator.drawn) == MOST_CALLS + 600  # those that were held back were stopped unsent


def test_groups_that_do_not_come_back_from_a_stop_end_the_run(generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(engines_module.logger, "warning", warnings.append)
    monkeypatch.setattr(generator.ray, "wait", lambda pending, **kwargs: ([], pending))
    step = generator.planner.plan(generator.flight, generator.queue)
    generator.engines.dispatch(groups_on([0, 1], generator, step))
    with pytest.raises(
        RuntimeError, match="2 groups were stopped and have not come back for 10 minutes: an agent .*load"
    ):
        list(generator.engines.stop())
    assert len(warnings) == 1 and "have not come back for 1 minutes" in warnings[0]


def test_an_engine_that_dies_ends_the_run_with_one_line(generator, monkeypatch):
    def dead(ref):
        raise RayActorError(error_msg="The actor died.\nclass_name: RolloutRayActor")

    monkeypatch.setattr(generator.ray, "respond", dead)
    with pytest.raises(RuntimeError, match="^a vLLM engine has died: The actor died.; .* --ckpt.load_enable$"):
        generator.generate_samples()

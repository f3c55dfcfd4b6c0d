"""How the command's wish reaches a process of the run, with the store of Ray's head made up."""

import threading
from types import SimpleNamespace

import pytest

from openrlhf_sagc.run import wishes as module
from openrlhf_sagc.run.wishes import GivenUp, Training, Wish, Wishes, tell, told


@pytest.fixture
def store(monkeypatch):
    """What Ray's head holds; each job has a share of it."""
    words = {}
    ray = SimpleNamespace(
        _internal_kv_initialized=lambda: True,
        _internal_kv_put=lambda key, value, namespace: words.update({(namespace, key): value}),
        _internal_kv_get=lambda key, namespace: words.get((namespace, key)),
    )
    monkeypatch.setattr(module, "internal_kv", ray)
    monkeypatch.setattr(
        module, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: words.get("job", "1"))
    )
    monkeypatch.setattr(module, "LOOK", 0.01)
    return words


def test_a_wish_is_heard_by_the_processes_of_its_job_alone(store):
    heard, ended = Wishes(), threading.Event()
    heard.at_end(ended.set)
    heard.look()
    store["job"] = "2"
    tell(Wish(end=True))
    store["job"] = "1"
    tell(Training(7.0, None))
    assert not ended.wait(0.2) and told(Wish) is None and told(Training) == Training(7.0, None)
    tell(Wish(end=True, may_save=False))
    assert ended.wait(60)
    with pytest.raises(GivenUp):
        heard.look()
    assert not heard.take_save()


def test_a_checkpoint_is_taken_once_for_each_time_it_is_wished():
    heard = Wishes()
    heard.wish = Wish(saves=1)
    assert [heard.take_save(), heard.take_save()] == [True, False]
    heard.wish = Wish(saves=3)
    assert [heard.take_save(), heard.take_save()] == [True, False]
    heard.wish = Wish(end=True, saves=3)
    assert heard.take_save()


def test_without_ray_nothing_is_told():
    tell(Wish(end=True))
    assert told(Wish) is None


def test_a_head_that_does_not_answer_for_a_moment_costs_no_wish(store, monkeypatch):
    asked, ended = threading.Event(), threading.Event()

    def unanswered(kind):
        asked.set()
        raise RuntimeError("Failed to connect to GCS")

    with monkeypatch.context() as context:
        context.setattr(module, "told", unanswered)
        heard = Wishes()
        heard.at_end(ended.set)
        assert asked.wait(60) and heard.wish == Wish()
    tell(Wish(end=True))
    assert ended.wait(10) and heard.wish.end


def test_a_word_that_ray_does_not_take_ends_nobody_who_says_it(store, monkeypatch):
    monkeypatch.setattr(module.internal_kv, "_internal_kv_put", lambda *words, namespace: 1 / 0)
    tell(Training(7.0, None))
    assert told(Training) is None

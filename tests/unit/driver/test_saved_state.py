"""A checkpoint of another format is refused before any of it is loaded."""

import json

import pytest

from openrlhf_sagc.decisions.records import Prompt, Rollout
from openrlhf_sagc.driver.saved_state import FORMAT, check_saved_state


def entries_of(state, prefix=""):
    """Dotted names of all entries; group sizes that the controller and prompts that the predictor have seen are data."""
    names = {prefix + name for name in state}
    inner = {
        name: value for name, value in state.items() if isinstance(value, dict) and name not in ("seen", "prompts")
    }
    return names.union(*(entries_of(value, f"{prefix}{name}.") for name, value in inner.items()))


# fmt: off
ENTRIES = {
    "format", "drained", "drawn_episode", "episode", "returned", "dispatched", "accepted", "unobserved", "steps",
    "controller", "sampler", "batcher", "predictor", "step_model", "prompts_consumed", "data",
    "controller.group_size", "controller.hazard_a", "controller.hazard_b", "controller.seen", "controller.stopped",
    "controller.stopped.entered", "controller.stopped.ended", "controller.virtual_queue", "controller.balance",
    "controller.steps", "controller.rate", "controller.rate_sum", "controller.price",
    "sampler.seen", "sampler.groups", "sampler.right", "sampler.pairs",
    "batcher.waited", "batcher.rounds", "predictor.average", "predictor.prompts",
}
# fmt: on
PROMPT = ("text", "label", "images", "episode", "must_finish", "stops")
ROLLOUT = ("tokens", "seconds", "queue_seconds", "finished", "stopped", "failure")


def saved_state(make_generator):
    on = {"rollout__tail_batching__enable": True, "rollout__length_aware_dispatch": True}
    generator = make_generator(40, **on)
    generator.generate_samples()
    return json.loads(json.dumps(generator.state_dict()))


def test_the_number_stands_for_these_entries(make_generator):
    """If this fails, something that is saved has changed: add 1 to FORMAT, and write the new entries here."""
    saved = saved_state(make_generator)["samples_generator"]
    assert (FORMAT, entries_of(saved), Prompt._fields, Rollout._fields) == (4, ENTRIES, PROMPT, ROLLOUT)
    assert len(saved["returned"][0]) == len(PROMPT)


@pytest.mark.parametrize("number, shown", [(None, "missing"), (2, 2), (FORMAT + 1, FORMAT + 1)])
def test_another_format_is_refused_before_anything_is_loaded(make_generator, number, shown):
    saved = saved_state(make_generator)
    saved["samples_generator"]["format"] = number
    if number is None:
        del saved["samples_generator"]["format"], saved["samples_generator"]["unobserved"]
    generator = make_generator(40)
    before = json.dumps(generator.state_dict())
    with pytest.raises(ValueError) as refused:
        generator.load_state_dict(saved)
    assert "--ckpt.path ckpt holds" in str(refused.value)
    assert f"samples_generator.format is {shown}, and this version of openrlhf_sagc loads 3 and {FORMAT}" in str(
        refused.value
    )
    assert json.dumps(generator.state_dict()) == before


def test_the_own_format_is_taken():
    check_saved_state({"controller": {}, "format": FORMAT}, "ckpt")

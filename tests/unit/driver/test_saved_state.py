"""A checkpoint of another format is refused before any of it is loaded; other data and other flags at a resume."""

import json
from collections import Counter

import pytest
from cpu_stack import ROOT
from fake_engines import on_close

from openrlhf_sagc.decisions.in_flight import InFlight
from openrlhf_sagc.decisions.records import Group, Prompt, Rollout
from openrlhf_sagc.driver.saved_state import FORMAT, check_saved_state, resumed_state


def entries_of(state, prefix=""):
    """Dotted names of all entries; group sizes that the controller and prompts that the predictor have seen are data."""
    names = {prefix + name for name in state}
    inner = {
        name: value for name, value in state.items() if isinstance(value, dict) and name not in ("seen", "prompts")
    }
    return names.union(*(entries_of(value, f"{prefix}{name}.") for name, value in inner.items()))


# fmt: off
ENTRIES = {
    "format", "drained", "drawn_episode", "taken", "episode", "returned", "running", "dispatched", "accepted", "unobserved", "steps",
    "waits",
    "controller", "sampler", "batcher", "predictor", "step_model", "prompts_consumed", "data",
    "controller.group_size", "controller.hazard_a", "controller.hazard_b", "controller.seen", "controller.stopped",
    "controller.stopped.entered", "controller.stopped.ended", "controller.virtual_queue", "controller.balance",
    "controller.steps", "controller.rate", "controller.rate_sum", "controller.price",
    "sampler.seen", "sampler.groups", "sampler.right", "sampler.pairs",
    "token_weights", "token_weights.earlier", "token_weights.frame", "token_weights.rounds", "token_weights.was_long",
    "batcher.waited", "batcher.rounds", "batcher.left", "predictor.average", "predictor.prompts", "predictor.drift",
    "predictor.judged", "predictor.pairs", "frame",
}
# fmt: on
PROMPT = ("text", "label", "images", "episode", "must_finish", "stops")
ROLLOUT = (
    "tokens",
    "seconds",
    "queue_seconds",
    "finished",
    "stopped",
    "failure",
    "reward_seconds",
    "refused",
    "retried",
)


def saved_state(make_generator):
    on = {
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        "rollout__length_aware_dispatch": True,
    }
    generator = make_generator(40, **on)
    generator.generate_samples()
    return json.loads(json.dumps(generator.state_dict()))


def test_the_number_stands_for_these_entries(make_generator):
    """If this fails, something that is saved has changed: add 1 to FORMAT, and write the new entries here."""
    saved = saved_state(make_generator)["samples_generator"]
    assert (FORMAT, entries_of(saved), Prompt._fields, Rollout._fields) == (9, ENTRIES, PROMPT, ROLLOUT)
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
    assert f"samples_generator.format is {shown}, and this version of openrlhf_sagc loads 3 to {FORMAT}" in str(
        refused.value
    )
    assert json.dumps(generator.state_dict()) == before


def test_the_own_format_is_taken():
    check_saved_state({"controller": {}, "format": FORMAT}, "ckpt")


def respond(prompt, size):
    return [(5 + prompt * 37 % 83, float(place % 2)) for place in range(size)]


def trained_of(generator, steps):
    """(prompt, episode) of the groups of the next steps."""
    trained = Counter()

    def note(step):
        trained.update((int(group.prompt.text), group.prompt.episode) for group in step.trained)

    on_close(generator, note)
    for _ in range(steps):
        generator.generate_samples()
    return trained


def test_a_checkpoint_of_the_last_release_goes_on(make_generator, tmp_path):
    """checkpoint_format_3.json was saved by the release before format 4, after two steps of four groups of 20 prompts."""
    saved = json.loads((ROOT / "tests/data/checkpoint_format_3.json").read_text())
    (tmp_path / "run.csv").write_text(saved["trace"])
    flags = {"rollout__trace": str(tmp_path / "run.csv"), "rollout__length_aware_dispatch": True}
    flags |= {"group_sizes": [4], "algo__dynamic_filtering_surplus": "keep"}
    generator = make_generator(20, respond, True, data=DATA, **flags)
    generator.load_state_dict(saved["state"])
    left = trained_of(generator, 4)
    first = Counter({prompt: count for prompt, count in left.items() if prompt[1] == 1})
    assert first == Counter((prompt, 1) for prompt in range(8, 20))
    assert (tmp_path / "run.csv").read_text().startswith(saved["trace"])
    assert generator.state_dict()["samples_generator"]["format"] == FORMAT


DATA = {"rows": 20, "digest": "d", "template": {"data.input_template": None}, "flags": {}}


def saved_after_two_steps(make_generator, data=DATA, **flags):
    generator = make_generator(20, respond, data=data, **{"group_sizes": [4], **flags})
    trained = trained_of(generator, 2)
    return json.loads(json.dumps(generator.state_dict(), default=lambda value: value.tolist())), trained


@pytest.mark.parametrize(
    "change, line",
    [
        (
            {"rows": 19},
            "the checkpoint's run had 20 prompts, and --data.prompt_dataset has 19: resume with that data, or ",
        ),
        (
            {"digest": "e"},
            "the 20 prompts and labels of --data.prompt_dataset are others than those of the checkpoint's",
        ),
        (
            {"template": {"data.input_template": "Q:\n{}"}},
            "had --data.input_template None, and this one has 'Q:\\\\n{}'",
        ),
    ],
)
def test_other_data_are_refused_before_anything_is_loaded(make_generator, change, line):
    saved, _ = saved_after_two_steps(make_generator)
    generator = make_generator(20, respond, data=DATA | change, group_sizes=[4])
    before = json.dumps(generator.state_dict())
    with pytest.raises(ValueError, match=line) as refused:
        generator.load_state_dict(saved)
    assert "\n" not in str(refused.value) and "--rollout.resume_data anew" in str(refused.value)
    assert json.dumps(generator.state_dict()) == before


@pytest.mark.parametrize("surplus", ["discard", "keep"])
def test_with_anew_the_episode_begins_anew_once(make_generator, surplus):
    """And only if the data are others: the flag may stay in the command."""
    saved, trained = saved_after_two_steps(make_generator, algo__dynamic_filtering_surplus=surplus)
    flags = {"group_sizes": [4], "rollout__resume_data": "anew", "algo__dynamic_filtering_surplus": surplus}
    resumed = make_generator(16, respond, data=DATA | {"rows": 16}, **flags)
    resumed.load_state_dict(saved)
    assert trained_of(resumed, 4) == Counter((prompt, 1) for prompt in range(16))
    assert resumed.planner.steps == 6

    same = make_generator(20, respond, data=DATA, **flags)
    same.load_state_dict(saved)
    assert trained + trained_of(same, 3) == Counter((prompt, 1) for prompt in range(20))


def test_with_anew_a_later_episode_begins_anew(make_generator):
    generator = make_generator(8, respond, data=DATA, group_sizes=[4])
    trained_of(generator, 3)
    assert generator.queue.episode == 2
    saved = json.loads(json.dumps(generator.state_dict()))
    resumed = make_generator(12, respond, data=DATA | {"rows": 12}, group_sizes=[4], rollout__resume_data="anew")
    resumed.load_state_dict(saved)
    assert resumed._prompts_consumed == 12  # an episode of these, for the learning rate
    assert trained_of(resumed, 3) == Counter((prompt, 2) for prompt in range(12))


def test_with_anew_the_mean_length_is_that_of_the_new_data(make_generator):
    tail = {"rollout__tail_batching__enable": True, "rollout__tail_batching__method": "stop", "group_sizes": [4]}
    generator = make_generator(40, respond, data=DATA, **tail)
    trained_of(generator, 3)
    saved = json.loads(json.dumps(generator.state_dict()))
    for rollout__resume_data, kept in (("same", True), ("anew", False)):
        data = DATA if kept else DATA | {"rows": 12}
        resumed = make_generator(40, respond, data=data, rollout__resume_data=rollout__resume_data, **tail)
        resumed.load_state_dict(saved)
        assert any(resumed.planner.token_weights.state_dict()["frame"]) == kept


def test_another_n_samples_per_prompt_goes_on_where_it_is_the_group_size(make_generator):
    saved, trained = saved_after_two_steps(make_generator)
    tail = {
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        "enable": False,
        "group_sizes": [8],
    }
    resumed = make_generator(20, respond, data=DATA, rollout__n_samples_per_prompt=8, **tail)
    resumed.load_state_dict(saved)
    samples = resumed.generate_samples()[0]
    assert len(samples) == 32 and resumed.planner.controller.group_size == 8
    trained += trained_of(resumed, 2)
    assert max(trained.values()) == 1


def test_kept_groups_of_another_size_are_rolled_out_again(make_generator):
    """Three groups wait for the next step; a run at size 8 trains the one of its size, and draws the others' prompts first."""
    saved, trained = saved_after_two_steps(make_generator)
    state = saved["samples_generator"]
    kept = [kept_group(prompt, n) for prompt, n in ((8, 4), (9, 8), (10, 4))]
    keep = {"algo__dynamic_filtering_surplus": "keep", "group_sizes": [8], "rollout__n_samples_per_prompt": 8}
    args = make_generator(20, data=DATA, **keep).args
    resumed = resumed_state({**state, "accepted": kept}, args, 20)
    assert [number for number, *_ in resumed["accepted"]] == [108]
    put_back = [["8", "", None, 1, True, 0], ["10", "", None, 1, True, 0]]
    assert resumed["returned"] == put_back + state["returned"] and "accepted" in state


def test_kept_groups_that_failed_rewards_have_cost_samples_are_trained_as_they_are(make_generator):
    """As in the run that was not interrupted."""
    saved, _ = saved_after_two_steps(make_generator)
    number, step, prompt, samples = kept_group(8, 4)
    flight = InFlight(accepted=[Group(number, step, Prompt(*prompt), 4, 4, samples=samples[:3])])
    state = {**saved["samples_generator"], **flight.state_dict()}
    args = make_generator(20, data=DATA, algo__dynamic_filtering_surplus="keep", group_sizes=[4]).args
    resumed = InFlight()
    resumed.load_state_dict(resumed_state(state, args, 20))
    assert resumed.accepted == flight.accepted


def kept_group(prompt, size, **fields):
    sample = {"tokens_T": [1, 2], "reward": 1.0, "score": 1.0, "log_probs_T": None} | fields
    return [100 + size, 1, [str(prompt), "", None, 1, False, 0], [sample] * size]


def test_without_a_surplus_kept_groups_have_the_size_of_the_next_step(make_generator):
    """A streamed step counts on it: its first bucket would declare a wrong number of samples."""
    saved, _ = saved_after_two_steps(make_generator)
    state = saved["samples_generator"]
    state = {**state, "accepted": [kept_group(8, 4), kept_group(9, 8)]}
    state["controller"] = {**state["controller"], "group_size": 4}
    for surplus, numbers in (("keep", [104, 108]), ("discard", [104])):
        args = make_generator(20, data=DATA, algo__dynamic_filtering_surplus=surplus).args
        assert [number for number, *_ in resumed_state(state, args, 20)["accepted"]] == numbers


@pytest.mark.parametrize("level, fields", [("token", {}), ("off", {"log_probs_T": [0.5]}), ("off", {"score": None})])
def test_kept_groups_without_what_other_samples_have_are_rolled_out_again(make_generator, level, fields):
    """A checkpoint of another version, or other flags at the resume: no micro-batch can be made of both."""
    saved, _ = saved_after_two_steps(make_generator)
    state = {**saved["samples_generator"], "accepted": [kept_group(8, 4, **fields)]}
    flags = {
        "algo__dynamic_filtering_surplus": "keep",
        "group_sizes": [4],
        "algo__advantage__is_correction_level": level,
    }
    args = make_generator(20, data=DATA, **flags).args
    resumed = resumed_state(state, args, 20)
    assert not resumed["accepted"] and resumed["returned"][0][0] == "8"


def test_kept_groups_of_an_earlier_format_are_rolled_out_again(make_generator):
    saved, _ = saved_after_two_steps(make_generator)
    group = kept_group(8, 4)
    group[-1] = [{"rewards": 1.0, "scores": 1.0, "rollout_log_probs": None}] * 4
    args = make_generator(20, data=DATA, algo__dynamic_filtering_surplus="keep", group_sizes=[4]).args
    resumed = resumed_state({**saved["samples_generator"], "format": 4, "accepted": [group]}, args, 20)
    assert not resumed["accepted"] and resumed["returned"][0][0] == "8"


def test_a_saved_size_that_is_no_candidate_names_its_flag(make_generator):
    saved, _ = saved_after_two_steps(make_generator)
    generator = make_generator(20, respond, data=DATA, group_sizes=[2, 8], rollout__n_samples_per_prompt=8)
    with pytest.raises(ValueError) as refused:
        generator.load_state_dict(saved)
    assert str(refused.value) == (
        "--ckpt.path ckpt was saved at group size 4, which is none of --rollout.sagc.group_sizes 2 8: add it, or give a "
        "single size to go on with that"
    )

"""Steps with dynamic sampling: what is dispatched, stopped, put back, kept and counted, on the engines of fake_engines.py.

A step has 4 groups of 4. The first one asks for 9 prompts, since nothing is known of the acceptance rate yet.
"""

import json

import pytest
from fake_engines import MIXED, ONE_SIZE, RIGHT, WRONG, prompts_of

import openrlhf_sagc.driver.rollout as rollout
from openrlhf_sagc.driver.experience import group_sizes_of


def of(lengths=lambda prompt: 10, scores=lambda prompt: MIXED):
    """respond() with one length and four scores for each prompt."""
    return lambda prompt, size: [(lengths(prompt), score) for score in scores(prompt)]


def filtering(metrics):
    return {name.split("/")[1]: value for name, value in metrics.items() if name.startswith("dynamic_filtering/")}


def test_groups_are_observed_before_they_are_filtered(make_generator):
    """Odd prompts are all wrong and have a straggler, even ones take a little longer than it."""

    def respond(prompt, size):
        return [(10, 0.0)] * 3 + [(50, 0.0)] if prompt % 2 else [(55, score) for score in MIXED]

    generator = make_generator(40, respond, filtering=True, **ONE_SIZE)
    samples, pass_rate, consumed, exhausted = generator.generate_samples()
    assert prompts_of(samples) == [0, 2, 4, 6]
    dropped = generator.metrics["dynamic_filtering/dropped_all_wrong"]
    assert dropped >= 4 and (consumed, exhausted) == (4 + dropped, False)
    accepted = generator.metrics["dynamic_filtering/accepted"]
    assert pass_rate == pytest.approx(100 * accepted / (accepted + dropped))
    stopped, dispatched = (generator.metrics[f"dynamic_filtering/{name}"] for name in ("aborted", "dispatched"))
    assert stopped and dropped + accepted + stopped == dispatched
    assert dropped / dispatched < generator.metrics["sagc/straggler_rate"] < (dropped + stopped) / dispatched


def test_every_drop_is_counted_by_its_reason(make_generator):
    scores = {0: MIXED, 1: RIGHT, 2: WRONG, 3: [0.5] * 4, 4: RIGHT, 5: MIXED, 6: MIXED}
    generator = make_generator(40, of(lambda p: 10 + p, lambda p: scores.get(p, MIXED)), filtering=True, **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [0, 5, 6, 7]
    counts = filtering(generator.metrics)
    assert [counts[f"dropped_{reason}"] for reason in ("all_right", "all_wrong", "constant")] == [2, 1, 1]
    assert counts["dropped_out_of_range"] == counts["dropped_reward_missing"] == counts["missing"] == 0
    assert counts["accepted"] == 4 and counts["dispatched"] >= 8


def test_given_range_is_combined_with_the_scores_differing(make_generator):
    scores = {0: [1.0, 1.0, 1.0, 0.0], 1: [0.5] * 4}
    respond = of(lambda p: 10 + p, lambda p: scores.get(p, MIXED))
    generator = make_generator(40, respond, filtering=True, algo__dynamic_filtering_range=[0.3, 0.7], **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [2, 3, 4, 5]
    assert generator.metrics["dynamic_filtering/dropped_out_of_range"] == 1
    assert generator.metrics["dynamic_filtering/dropped_constant"] == 1


def test_without_the_filter_a_step_asks_for_what_it_needs(make_generator):
    generator = make_generator(40, of(scores=lambda prompt: RIGHT), **ONE_SIZE)
    samples, pass_rate, consumed, _ = generator.generate_samples()
    assert (prompts_of(samples), pass_rate, consumed) == ([0, 1, 2, 3], None, 4)


def test_stopped_prompts_come_back_first_and_are_waited_for(make_generator):
    """Prompts 1 and 3 take longest: the first step ends without them, the second is not over before they are."""
    lengths = lambda prompt: 90 if prompt in (1, 3) else 10  # noqa: E731
    generator = make_generator(40, of(lengths), filtering=True, **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [0, 2, 4, 5]
    first = filtering(generator.metrics)
    assert (first["dispatched"], first["aborted"], first["discarded"], first["queued_prompts"]) == (9, 2, 3, 5)
    assert first["aborted_tokens"] == 2 * 4 * 10
    assert prompts_of(generator.generate_samples()[0]) == [1, 3, 6, 7]
    assert generator.drawn[9:14] == [1, 3, 6, 7, 9]  # of those owed no more than the step can train
    assert generator.ray.clock == 10 + 90


def test_no_prompt_is_lost_or_trained_twice(make_generator):
    """Whatever is stopped or discarded, an episode trains each of its prompts once, short or long."""
    generator = make_generator(60, of(lambda prompt: 5 + prompt * 37 % 83), filtering=True, **ONE_SIZE)
    trained = []
    for episode in (1, 2, 3):
        exhausted = False
        while not exhausted:
            samples, _, consumed, exhausted = generator.generate_samples()
            trained += prompts_of(samples)
            assert consumed == len(samples) // 4
        assert {trained.count(prompt) for prompt in range(60)} <= {episode, episode + 1}
        assert len(trained) < 60 * episode + 9  # few of the next one


def test_surplus_that_finished_is_discarded_and_rolled_out_again(make_generator):
    """All eight groups end at once: four are trained, the others' prompts come again, on policy."""
    generator = make_generator(40, of(), filtering=True, **ONE_SIZE)
    generator.ray.together = True
    assert prompts_of(generator.generate_samples()[0]) == [0, 1, 2, 3]
    counts = filtering(generator.metrics)
    assert (counts["discarded"], counts["aborted"], counts["kept"]) == (5, 0, 0)
    assert prompts_of(generator.generate_samples()[0]) == [4, 5, 6, 7]
    assert generator.metrics["rollout/age_max"] == 0


def test_kept_surplus_is_trained_one_update_late_at_most(make_generator):
    """Half of the prompts have no signal, until all have one: more is kept than the next step can train."""
    scores = lambda prompt: WRONG if prompt % 2 and prompt < 60 else MIXED  # noqa: E731
    respond = of(lambda prompt: 5 + prompt * 37 % 83, scores)
    generator = make_generator(200, respond, filtering=True, algo__dynamic_filtering_surplus="keep", **ONE_SIZE)
    trained, ages, discarded = [], [], 0.0
    for _ in range(30):
        trained += prompts_of(generator.generate_samples()[0])
        ages.append(generator.metrics["rollout/age_max"])
        discarded += filtering(generator.metrics)["discarded"]
    assert set(ages) == {0, 1} and discarded
    assert len(set(trained)) == len(trained) == 120


def test_kept_surplus_serves_the_next_step_with_its_age(make_generator):
    lengths = lambda prompt: 90 if prompt in (1, 3) else 10  # noqa: E731
    generator = make_generator(40, of(lengths), filtering=True, algo__dynamic_filtering_surplus="keep", **ONE_SIZE)
    assert prompts_of(generator.generate_samples()[0]) == [0, 2, 4, 5]
    counts = filtering(generator.metrics)
    assert (counts["kept_running"], counts["aborted"], counts["discarded"]) == (5, 0, 0)
    assert generator.metrics["rollout/age_max"] == 0
    assert generator.ray.calls == ["pause_generation"]
    state = json.loads(json.dumps(generator.state_dict()))
    second = generator.generate_samples()[0]
    assert generator.ray.calls[:2] == ["pause_generation", "resume_generation"]
    assert prompts_of(second) == [1, 3, 6, 7] and generator.ray.clock == 90
    assert filtering(generator.metrics)["discarded"] == 1
    assert generator.metrics["rollout/age_max"] == generator.metrics["rollout/age_mean"] == 1

    resumed = make_generator(40, of(lengths), filtering=True, algo__dynamic_filtering_surplus="keep", **ONE_SIZE)
    resumed.load_state_dict(state)
    resumed.generate_samples()
    assert resumed.drawn[:5] == [1, 3, 6, 7, 9]  # what was running is rolled out again


def test_kept_groups_are_trained_at_the_size_they_were_dispatched_with(make_generator):
    """Nine groups of 4 end at once and four are trained; three of the others have no signal, and the next size is 8."""
    respond = lambda prompt, size: [(10, 0.0 if 6 <= prompt < 9 else i % 2) for i in range(size)]  # noqa: E731
    flags = {"algo__dynamic_filtering_surplus": "keep", "hold": "prompts"}
    generator = make_generator(200, respond, filtering=True, **flags)
    generator.ray.together = True
    assert group_sizes_of(generator.generate_samples()[0]) == [4, 4, 4, 4]
    counts = filtering(generator.metrics)
    assert (generator.metrics["sagc/next_group_size"], counts["kept_running"], counts["aborted"]) == (8, 5, 0)
    samples = generator.generate_samples()[0]
    assert group_sizes_of(samples) == [4, 4, 8, 8]
    assert {sample.step.num_samples for sample in samples} == {24}
    assert generator.metrics["sagc/group_size"] == 8


@pytest.mark.parametrize("surplus", ["discard", "keep"])
def test_resume_restores_the_queue(make_generator, surplus):
    """The steps after the resume train what the uninterrupted run trains, kept and put back prompts first."""
    respond = of(lambda prompt: 10 + prompt * 37 % 83, lambda prompt: WRONG if prompt % 5 == 4 else MIXED)
    make = lambda: make_generator(  # noqa: E731
        40, respond, filtering=True, algo__dynamic_filtering_surplus=surplus, **ONE_SIZE
    )
    straight, killed, resumed = make(), make(), make()
    steps = [prompts_of(straight.generate_samples()[0]) for _ in range(6)]
    assert [prompts_of(killed.generate_samples()[0]) for _ in range(3)] == steps[:3]
    assert len(killed.queue) or surplus == "keep"
    resumed.load_state_dict(killed.state_dict())
    rest = [prompts_of(resumed.generate_samples()[0]) for _ in range(3)]
    if surplus == "discard":
        assert rest == steps[3:]
    under_way = {prompt.text for prompt in killed.flight.running_prompts}
    assert under_way <= {str(prompt) for step in rest for prompt in step} | {str(p) for p in range(4, 40, 5)}


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_data_without_a_signal_ends_at_the_cap(make_generator, score):
    generator = make_generator(6, lambda prompt, size: [(10, score)] * size, filtering=True, **ONE_SIZE)
    reason = "all right" if score else "all wrong"
    message = (
        r"--algo.dynamic_filtering_max_gen_batches 10 reached: 40 prompts of 4 samples gave 0 of the 4 groups of step 1 "
        rf"\(dropped: 40 {reason}\): use a larger number, prompts that are solved sometimes, or --algo.dynamic_filtering_at_cap keep"
    )
    with pytest.raises(RuntimeError, match=message):
        generator.generate_samples()


def test_at_the_cap_a_step_may_train_on_what_there_is(make_generator):
    respond = of(scores=lambda prompt: MIXED if prompt in (3, 17) else WRONG)
    flags = {"algo__dynamic_filtering_at_cap": "keep", "algo__dynamic_filtering_max_gen_batches": 5, **ONE_SIZE}
    generator = make_generator(100, respond, filtering=True, **flags)
    samples, pass_rate, consumed, _ = generator.generate_samples()
    assert (prompts_of(samples), consumed, pass_rate) == ([3, 17], 20, 10)
    assert filtering(generator.metrics)["missing"] == 2
    with pytest.raises(RuntimeError, match=r"20 prompts of 4 samples gave 0 of the 4 groups of step 2 \(dropped: 20"):
        generator.generate_samples()
    generator = make_generator(100, respond, filtering=True, actor__num_gpus_per_node=9, **flags)
    with pytest.raises(RuntimeError, match="gave 2 of the 4 groups"):  # 8 samples for 9 actors
        generator.generate_samples()
    generator = make_generator(100, respond, filtering=True, ref__num_gpus_per_node=9, **flags)
    with pytest.raises(RuntimeError, match="gave 2 of the 4 groups"):  # 8 samples for 9 ranks of the reference model
        generator.generate_samples()


def test_an_hour_without_a_group_is_said_once(make_generator, monkeypatch):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    generator = make_generator(40, lambda prompt, size: [(10, float(prompt))] * size, **ONE_SIZE)
    generator.ray.requests = 1
    wait, silent = generator.ray.wait, [True] * 360

    def wait_in_vain(pending, **kwargs):
        return ([], pending) if silent and silent.pop() else wait(pending, **kwargs)

    monkeypatch.setattr(generator.ray, "wait", wait_in_vain)
    assert prompts_of(generator.generate_samples()[0]) == [0, 1, 2, 3] and not silent
    assert [line.partition(":")[0] for line in warnings] == [
        "no group of step 1 has come back for 10 minutes, 4 are waited for"
    ]


def test_groups_without_scores_are_judged_by_the_reward_or_kept(make_generator, monkeypatch):
    generator = make_generator(40, of(), filtering=True, **ONE_SIZE)
    respond = generator.ray.respond
    monkeypatch.setattr(generator.ray, "respond", lambda ref: [answer | {"scores": None} for answer in respond(ref)])
    assert len(generator.generate_samples()[0]) == 16
    generator = make_generator(40, of(), **ONE_SIZE)  # a reward model scores them later
    unscored = lambda ref: [answer | {"scores": None, "reward": None} for answer in respond(ref)]  # noqa: E731
    monkeypatch.setattr(generator.ray, "respond", unscored)
    assert len(generator.generate_samples()[0]) == 16


SORTED = {"rollout__tail_batching__enable": True, "rollout__tail_batching__method": "sort"}


@pytest.mark.parametrize(
    "surplus, flags",
    [(False, {}), (True, {}), (False, SORTED)],
    ids=["a step that needs it", "a step that has a surplus", "a sorted step"],
)
def test_a_prompt_whose_group_never_comes_back_is_given_up_and_named(make_generator, monkeypatch, surplus, flags):
    """Every attempt at prompt 2 hangs; the others are trained once each, in full steps."""
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    generator = make_generator(
        40, of(lambda prompt: 10**9 if prompt == 2 else 10), filtering=surplus, **ONE_SIZE, **flags
    )
    wait = generator.ray.wait

    def wait_for_what_ends(pending, num_returns, timeout):
        ends = [ref for ref in pending if ref.prompt != "2"]
        if timeout < 10:
            return wait(pending, num_returns, timeout)
        return wait(ends, num_returns, timeout) if ends else ([], pending)

    monkeypatch.setattr(generator.ray, "wait", wait_for_what_ends)
    trained, given_up, consumed = [], 0.0, 0
    while generator.queue.episode == 1:
        samples, _, step_consumed, _ = generator.generate_samples()
        trained += prompts_of(samples)
        consumed += step_consumed
        given_up += generator.metrics["dynamic_filtering/given_up"]
        assert len(samples) == 16
    if flags:  # its next attempt is in the next frame, which has prompts of the next episode too
        assert set(trained) == {0, 1, *range(3, 40)} and (given_up, consumed) == (1, len(trained) + 1)
    else:
        assert sorted(trained)[:40] == [0, 0, 1, *range(3, 40)]  # and one of the next episode, for the missing one
        assert (given_up, generator.drawn.count(2), consumed) == (1, 3, len(trained) + 1)
    named = [line for line in warnings if "is given up" in line]
    assert len(named) == 1 and named[0].endswith("the prompt is '2'")


@pytest.mark.parametrize(
    "waits, requests, more, stops",
    [
        (3000, 1, {}, False),  # a rollout of more than eight hours
        (179, 0, {}, False),
        (182, 0, {}, True),
        (182, 0, {"reward__timeout": 300.0}, False),  # x 3 attempts x 3
        (272, 0, {"reward__timeout": 300.0}, True),
        (359, 0, {"rollout__agent_timeout": 1200.0}, False),
        (362, 0, {"rollout__agent_timeout": 1200.0}, True),
    ],
)
def test_groups_are_stopped_after_a_silence_in_which_nothing_was_decoded(
    make_generator, monkeypatch, waits, requests, more, stops
):
    generator = make_generator(40, **ONE_SIZE, **more)
    generator.ray.requests = requests
    wait, silent = generator.ray.wait, [True] * waits

    def wait_in_vain(pending, **kwargs):
        return ([], pending) if silent and silent.pop() else wait(pending, **kwargs)

    monkeypatch.setattr(generator.ray, "wait", wait_in_vain)
    generator.generate_samples()
    assert (generator.metrics["dynamic_filtering/aborted"] > 0) == stops

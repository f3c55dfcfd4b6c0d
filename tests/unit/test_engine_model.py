"""The engine model against a simulation token by token, closed forms, and OpenRLHF's own placement."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "eval"))

from cluster import Cluster  # noqa: E402
from engine_model import CostModel, Engine, Request  # noqa: E402

sys.path.remove(str(ROOT / "eval"))


def costs_of(**fields):
    defaults = dict.fromkeys(CostModel.__dataclass_fields__, 0.0)
    defaults |= {"decode_base": 1.0, "max_running": 1000, "kv_limit": 10**6, "gpus_per_engine": 1}
    return CostModel(**defaults | fields)


def next_ended(engine):
    ended = engine.run_to_event()
    engine.schedule()
    return ended


def one_token_at_a_time(costs, arrivals):
    """What Engine does, step by step: sorted (start, end) of the requests, tokens decoded and prefilled, preemptions.

    arrivals: (seconds, [(prompt tokens, tokens), ...]), in order.
    """
    arrivals = [(time, [[prompt, tokens, 0, None, None] for prompt, tokens in batch]) for time, batch in arrivals]
    every = [request for _, batch in arrivals for request in batch]
    clock, running, waiting, decoded, prefilled, preemptions = 0.0, [], [], 0, 0, 0

    def context(requests):
        return sum(request[0] + request[2] for request in requests)

    while arrivals or running or waiting:
        if not running and not waiting:
            clock = max(clock, arrivals[0][0])
        while arrivals and arrivals[0][0] <= clock:
            waiting += arrivals.pop(0)[1]
        fits, new = context(running) <= costs.kv_limit, []
        while context(running) > costs.kv_limit:
            waiting.insert(0, running.pop())
            preemptions += 1
        while fits and waiting and len(running) < costs.max_running:
            if context([*running, waiting[0]]) > costs.kv_limit:
                break
            running.append(waiting.pop(0))
            new.append(running[-1])
            running[-1][3] = clock if running[-1][3] is None else running[-1][3]
        clock += costs.decode_base + costs.decode_per_request * len(running)
        clock += costs.decode_per_kv_token * context(running) + costs.prefill_per_token * context(new)
        decoded, prefilled = decoded + len(running), prefilled + context(new)
        for request in running:
            request[2] += 1
            request[4] = clock if request[2] == request[1] else None
        running = [request for request in running if request[4] is None]
    return [(request[3], request[4]) for request in every], decoded, prefilled, preemptions


LIMIT = 40
REQUEST = st.tuples(st.integers(0, 8), st.integers(1, 25))
# Sixteenths are exact in floating point, so that ties are ties in both.
ARRIVALS = st.lists(
    st.tuples(st.integers(0, 400).map(lambda n: n / 16), st.lists(REQUEST, min_size=1, max_size=5)), max_size=5
).map(sorted)


@given(
    arrivals=ARRIVALS,
    kv_limit=st.sampled_from([LIMIT, 60, 10**6]),
    max_running=st.integers(1, 6),
    per_request=st.sampled_from([0, 0.25]),
    per_kv_token=st.sampled_from([0, 1 / 16]),
    prefill=st.sampled_from([0, 0.5]),
    arrival_first=st.booleans(),
)
def test_events_are_those_of_a_simulation_token_by_token(
    arrivals, kv_limit, max_running, per_request, per_kv_token, prefill, arrival_first
):
    costs = costs_of(
        kv_limit=kv_limit,
        max_running=max_running,
        decode_per_request=per_request,
        decode_per_kv_token=per_kv_token,
        prefill_per_token=prefill,
    )
    engine, every = Engine(costs), []
    for time, batch in arrivals:
        while engine.next_event < time or engine.next_event == time and not arrival_first:
            next_ended(engine)
        requests = [Request(prompt_tokens, tokens) for prompt_tokens, tokens in batch]
        every += requests
        engine.submit(requests, time)
    while engine.next_event < math.inf:
        next_ended(engine)
    expected, decoded, prefilled, preemptions = one_token_at_a_time(costs, arrivals)
    assert [(request.started, request.ended) for request in every] == expected
    assert (engine.decoded, engine.prefilled, engine.preemptions) == (decoded, prefilled, preemptions)
    assert engine.decoded == sum(request.tokens for request in every)  # each token once: recomputed ones are prefilled
    assert (engine.unfinished, engine.kv) == (0, 0)


def test_the_limit_on_the_cache_preempts_and_recomputes():
    """Two rollouts of prompt 10 and 25 tokens in a cache of 40: the later one leaves when 42 would be needed."""
    engine = Engine(costs_of(kv_limit=LIMIT, prefill_per_token=0.5))
    first, second = Request(10, 25), Request(10, 25)
    engine.submit([first, second], 0.0)
    assert next_ended(engine) == [] and (engine.preemptions, list(engine.waiting)) == (1, [second])
    assert next_ended(engine) == [first] and first.ended == 25 + 0.5 * 20
    assert next_ended(engine) == [second]
    # 11 tokens had been decoded: 21 are prefilled again and 14 steps follow.
    assert second.ended == first.ended + 0.5 * 21 + 14
    assert (engine.decoded, engine.prefilled) == (50, 41)


@given(lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=60), prompt=st.integers(0, 300))
def test_one_engine_that_admits_all_has_a_closed_form(lengths, prompt):
    costs = costs_of(decode_base=0.01, decode_per_request=1e-4, decode_per_kv_token=1e-7, prefill_per_token=1e-5)
    cluster = Cluster(costs, 1)
    cluster.dispatch({0: [Request(prompt, tokens) for tokens in lengths]})
    assert cluster.next_group()[0] == 0
    kv_tokens = sum(prompt * n + n * (n - 1) / 2 for n in lengths)
    seconds = 0.01 * max(lengths) + 1e-4 * sum(lengths) + 1e-7 * kv_tokens + 1e-5 * prompt * len(lengths)
    assert cluster.now == pytest.approx(seconds, rel=1e-9)


@given(
    count=st.integers(1, 12),
    size=st.sampled_from([4, 8, 16]),
    engines=st.integers(1, 5),
    before=st.lists(st.sampled_from([4, 8]), max_size=6),
)
def test_groups_are_placed_as_openrlhf_places_them(count, size, engines, before):
    import openrlhf.trainer.ppo_utils.samples_generator as upstream

    cluster = Cluster(costs_of(max_running=6), engines)
    dispatch = lambda sizes, start: cluster.dispatch(  # noqa: E731
        {start + i: [Request(5, 3 + 7 * i + j) for j in range(n)] for i, n in enumerate(sizes)}
    )
    dispatch(before, 0)
    if before:
        cluster.next_group()
    loads = [engine.unfinished for engine in cluster.engines]

    class Remote:
        def __init__(self, function):
            self.remote = function

    actors = [
        SimpleNamespace(
            get_num_unfinished_requests=Remote(lambda index=index: loads[index]),
            generate_responses=Remote(lambda index=index, **_: index),
        )
        for index in range(engines)
    ]
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=SimpleNamespace(is_correction_level="off")),
        rollout=SimpleNamespace(n_samples_per_prompt=None),
    )
    generator = upstream.SamplesGenerator(SimpleNamespace(args=args), None, None, None, actors)
    prompts = [""] * count
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream.ray, "get", lambda results: results)
        patch.setattr(upstream, "SamplingParams", lambda **_: None)
        expected = generator._dispatch_prompts_to_vllm(prompts, prompts, n_samples_per_prompt=size)
    assert dispatch([size] * count, 100) == expected


def test_stopping_leaves_idle_engines_and_says_what_was_whole():
    cluster = Cluster(costs_of(), 2)
    assert cluster.dispatch({0: [Request(0, 3)], 1: [Request(0, 3)], 2: [Request(0, 9)]}) == [0, 1, 0]
    assert cluster.next_group()[0] == 0
    left = cluster.stop()
    assert {group: [request.ended for request in requests] for group, requests in left.items()} == {
        1: [None],
        2: [None],
    }
    assert [engine.unfinished for engine in cluster.engines] == [0, 0] and cluster.now == 3
    cluster.dispatch({3: [Request(0, 4)]})
    assert cluster.next_group()[0] == 3 and cluster.now == 7


def test_a_rollout_beyond_the_cache_is_refused():
    cluster = Cluster(costs_of(kv_limit=20), 1)
    with pytest.raises(ValueError, match="kv_limit 20 is less than a rollout of 21 tokens, prompt included"):
        cluster.dispatch({0: [Request(10, 11)]})
    assert cluster.engines[0].unfinished == 0


@pytest.mark.parametrize("path", sorted((ROOT / "eval/engines").glob("*.json")), ids=lambda path: path.stem)
def test_shipped_engines_load_and_say_where_they_are_from(path):
    assert CostModel.load(path).decode_base > 0
    assert json.loads(path.read_text())["about"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sync": None}, r"fields missing: \['sync'\], unknown: \[\]"),
        ({"speed": 3}, r"fields missing: \[\], unknown: \['speed'\]"),
        ({"decode_base": 0}, "decode_base must be above 0"),
        ({"train_base": -1}, "train_base must be a finite number of at least 0, got -1"),
        ({"train_base": float("nan")}, "train_base must be a finite number of at least 0, got nan"),
        ({"max_running": 1.5}, "max_running must be a whole number of at least 1, got 1.5"),
        ({"kv_limit": True}, "kv_limit must be a whole number of at least 1, got True"),
    ],
)
def test_bad_engine_files_are_refused(change, message, tmp_path):
    fields = {name: value for name, value in {**vars(costs_of()), **change}.items() if value is not None}
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"engine.json: {message}"):
        CostModel.load(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="engine.json is not a JSON file"):
        CostModel.load(path)

"""An engine against a simulation token by token."""

import math

from engine_costs import costs_of
from hypothesis import given
from hypothesis import strategies as st
from lib.simulation.engine import Engine, Request


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
        seconds = costs.decode_base + costs.decode_per_request * len(running)
        seconds += costs.decode_per_kv_token * context(running) + costs.prefill_per_token * context(new)
        clock += max(seconds, costs.launch)
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
    launch=st.sampled_from([0, 1.25, 2.5, 6]),
    arrival_first=st.booleans(),
)
def test_events_are_those_of_a_simulation_token_by_token(
    arrivals, kv_limit, max_running, per_request, per_kv_token, prefill, launch, arrival_first
):
    costs = costs_of(
        kv_limit=kv_limit,
        max_running=max_running,
        decode_per_request=per_request,
        decode_per_kv_token=per_kv_token,
        prefill_per_token=prefill,
        launch=launch,
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


def seconds_of(requests, **drafts):
    """When the last of so many requests of 100 tokens ends."""
    engine = Engine(costs_of(decode_per_request=0.01, **drafts))
    engine.submit([Request(prompt_tokens=0, tokens=100) for _ in range(requests)], 0.0)
    while engine.running:
        next_ended(engine)
    return engine.clock


def test_drafts_are_verified_where_that_is_faster():
    drafts = {"tokens_per_iteration": 2.0, "drafted": 4.0, "drafting": 0.125}
    for requests in (1, 10, 30):
        per_step = (1.125 + 0.01 * requests * 5) / 2
        assert math.isclose(seconds_of(requests, **drafts), 100 * min(per_step, 1.125 + 0.01 * requests))
    assert seconds_of(1, **drafts) < seconds_of(1) < seconds_of(1, drafting=0.125)
    assert seconds_of(60, **drafts) == seconds_of(60, drafting=0.125)

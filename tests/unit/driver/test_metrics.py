"""What the log says of a step, and the warnings about the controller."""

from types import SimpleNamespace

import pytest

import openrlhf_sagc.driver.engines as engines
import openrlhf_sagc.driver.rollout as rollout
from openrlhf_sagc.decisions.records import ROLLOUT, Rollout
from openrlhf_sagc.driver.metrics import rollout_metrics


def rollout_of(tokens, seconds=1.0, queue_seconds=0.0, finished=True):
    return Rollout(tokens, seconds, queue_seconds, finished, stopped=not finished, failure=None)


def test_rollout_metrics_are_over_all_rollouts():
    groups = [[rollout_of(n, 2.5, 0.5) for n in tokens_R] for tokens_R in ([10, 10, 10, 40], [20, 20, 20, 30])]
    metrics = rollout_metrics(groups, longest=50)
    assert metrics["rollout/response_length_median"] == 20
    assert metrics["rollout/response_length_max"] == 40
    assert metrics["rollout/idle_fraction"] == pytest.approx(1 - 20 / 40)
    assert metrics["sagc/length_headroom"] == 50 / 20
    assert (metrics["rollout/seconds_median"], metrics["rollout/queue_seconds"]) == (2.0, 0.5)


def test_stopped_rollouts_keep_slots_busy_but_have_no_length_yet():
    group = [rollout_of(10), rollout_of(10), rollout_of(10), rollout_of(50, 9.0, finished=False)]
    metrics = rollout_metrics([group], longest=50)
    assert metrics["rollout/response_length_max"] == 10 and metrics["rollout/seconds_max"] == 1.0
    assert metrics["rollout/idle_fraction"] == pytest.approx(1 - 20 / 50)
    assert rollout_metrics([group[3:]], longest=50) == {}


def test_signal_in_seconds_leaves_the_queue_out(make_generator):
    """One rollout of four takes 0.9 s instead of 0.3 s, all with 0.5 s in the queue and as many tokens."""
    respond = lambda prompt, size: [(10, 1.0, 0.9)] + [(10, 1.0, 0.3)] * (size - 1)  # noqa: E731
    for signal, rate in (("seconds", 1.0), ("tokens", 0.0)):
        generator = make_generator(8, respond, signal=signal)
        generator.generate_samples()
        assert generator.metrics["sagc/straggler_rate"] == rate
        assert generator.metrics["rollout/seconds_max"] == pytest.approx(0.9)
        assert generator.metrics["rollout/queue_seconds"] == pytest.approx(0.5)


def test_waits_for_rewards_are_logged_and_said_once(make_generator, monkeypatch):
    """Every rollout runs for a second on the clock and waits for its reward for nine; the second step is quick."""
    warnings, clock = [], iter(range(0, 10_000, 10))
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    monkeypatch.setattr(engines, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    generator = make_generator(40)
    respond, waits = generator.ray.respond, True

    def slow(ref):
        (response,) = respond(ref)
        waited = {"reward_seconds": 9.0, "refused": 2, "retried": 1} if waits else {}
        return [{**response, ROLLOUT: response[ROLLOUT]._replace(seconds=10.0, queue_seconds=0.0, **waited)}]

    generator.ray.respond = slow
    generator.generate_samples()
    logged = generator.metrics
    assert logged["rollout/reward_wait_seconds"] >= 9 and logged["rollout/reward_wait_share"] > 0.2
    assert logged["rollout/seconds_max"] == 1.0
    assert (logged["rollout/reward_requests_refused"], logged["rollout/reward_requests_retried"]) == (32, 16)
    generator.generate_samples()
    waits = False
    generator.generate_samples()
    assert (
        generator.metrics["rollout/reward_wait_seconds"] == 0 == generator.metrics["rollout/reward_requests_refused"]
    )
    (line,) = [line for line in warnings if "waited for rewards" in line]
    assert "step 1's rollouts" in line and "(32 requests refused, 16 made again)" in line


@pytest.mark.parametrize(
    "lengths, words",
    [
        ((10, 99), "--rollout.sagc.max_straggler_rate 0.2 is out of reach: even groups of 4 exceed it"),
        ((60, 100), "the longest response allowed, 100 tokens, is 1.67 times the median one"),
    ],
    ids=["limit out of reach", "stragglers cut off"],
)
def test_warns_once(make_generator, monkeypatch, lengths, words):
    warnings = []
    monkeypatch.setattr(rollout.logger, "warning", warnings.append)
    short, long = lengths
    generator = make_generator(400, lambda prompt, size: [(short, float(prompt))] * (size - 1) + [(long, 1.0)])
    for _ in range(40):
        generator.generate_samples()
    (warning,) = warnings
    assert words in warning

"""What of a step is sent to the actors while it still rolls out, and what is left for the end."""

from types import SimpleNamespace

import pytest
from fake_engines import ONE_SIZE, prompts_of
from hypothesis import given
from hypothesis import strategies as st

import openrlhf_sagc.driver.streaming as streaming
from openrlhf_sagc.decisions.records import Group, Prompt
from openrlhf_sagc.training.streamed_training import train_bucket
from openrlhf_sagc.training.training import StepShare


class Maker:
    """The experience maker and its actors: it keeps every bucket's samples, and what was called in which order."""

    def __init__(self, ranks, micro_batch, steps=1):
        self.args = SimpleNamespace(
            actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
            ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
            train=SimpleNamespace(micro_batch_size=micro_batch, batch_size=4),
            rollout=SimpleNamespace(max_new_tokens=100, batch_size=1, n_samples_per_prompt=4 * steps),
            data=SimpleNamespace(max_len=200),
        )
        self.actor_model_group, self.actors_make_old_log_probs = self, True
        self.buckets, self.calls, self.received = [], [], []

    def make_bucket(self, samples):
        self.buckets.append(samples)
        self.received = [f"received {len(self.buckets)}"]
        return [SimpleNamespace(info={}, response_length=None, truncated=None, samples=samples)]

    def async_run_method_batch(self, method_name, experience):
        self.calls.append((method_name, experience[0].samples))
        return [f"appended {len(self.buckets)}"]

    def async_run_method(self, name, function, kl_coef):
        assert function is train_bucket
        self.calls.append((name, kl_coef))
        return [float(len(self.buckets)), "seconds of the second rank"]


def groups_of(numbers, size):
    return [Group(n, 0, Prompt("", "", None, 1), size, size, samples=[object()] * size) for n in numbers]


@given(
    size=st.sampled_from([2, 4, 8]),
    num_groups=st.integers(1, 40),
    ranks=st.sampled_from([1, 2, 8]),
    micro_batch=st.sampled_from([1, 4, 16]),
    data=st.data(),
)
def test_buckets_are_whole_groups_in_order_and_leave_a_sample_for_each_rank(
    size, num_groups, ranks, micro_batch, data
):
    maker = Maker(ranks, micro_batch)
    stream = streaming.Stream(maker, SimpleNamespace(value=0.5))
    for _ in range(2):  # steps
        maker.buckets.clear()
        stream.begin(SimpleNamespace(num_groups=num_groups, group_size=size), progress=0.25)
        groups = groups_of(range(num_groups), size)
        left = list(groups)
        while left:
            count = data.draw(st.integers(1, len(left)))
            stream.send(left[:count])
            left = left[count:]
        sent = [sample.group for bucket in maker.buckets for sample in bucket]
        rest = stream.rest(groups)
        assert sent + [g.number for g in rest for _ in range(size)] == [g.number for g in groups for _ in range(size)]
        assert len(rest) * size >= min(ranks, num_groups * size) and stream.has_sent == bool(sent)
        before = 0
        for bucket in maker.buckets:
            assert len(bucket) >= max(ranks * micro_batch, (num_groups * size - before) / 2)
            before += len(bucket)
        for bucket in maker.buckets:
            assert {sample.step for sample in bucket} == {stream.share}
            assert all(s.group_size == size for s in bucket)
        assert stream.share.num_samples == num_groups * size and stream.share.progress == 0.25
        divisor = stream.share.divisor
        assert divisor >= num_groups * size * 100 and divisor.hex().startswith("0x1.0000000000000p")
        assert len(stream.made) == len(maker.buckets)


def test_seconds_of_buckets_that_are_trained_at_the_end_of_generation_are_hidden(monkeypatch):
    maker = Maker(ranks=1, micro_batch=8)
    stream = streaming.Stream(maker, SimpleNamespace(value=0.5))
    stream.begin(SimpleNamespace(num_groups=8, group_size=4), progress=0.0)
    for group in groups_of(range(8), 4):
        stream.send([group])
    assert [len(bucket) for bucket in maker.buckets] == [16, 8]
    assert [name for name, _ in maker.calls] == ["append", "__ray_call__"] * 2
    fetched = []
    monkeypatch.setattr(streaming.ray, "get", lambda refs: fetched.append(refs) or refs)
    done = {1.0, "seconds of the second rank"}
    monkeypatch.setattr(
        streaming.ray, "wait", lambda refs, num_returns, timeout: ([r for r in refs if r in done], None)
    )
    assert stream.metrics() == {"stream/sample_share": 0.75, "stream/hidden_seconds": 1.0}
    assert stream.join() >= 0
    assert "received 2" in fetched[0] or not fetched[0]
    assert {"received 2", "appended 2", 2.0} <= set(fetched[-1])  # raises what has gone wrong in any of them


class Sent:
    """In the place of a Stream: it sends every group at once."""

    def begin(self, step, progress):
        self.step, self.share, self.sent = step, StepShare(0.0, 0), []

    def send(self, groups):
        self.sent += groups

    @property
    def has_sent(self):
        return bool(self.sent)

    def rest(self, trained):
        assert {group.number for group in self.sent} <= {group.number for group in trained}
        return [group for group in trained if group.number not in {sent.number for sent in self.sent}]

    def metrics(self):
        return {"stream/sample_share": len(self.sent) / self.step.num_groups}


@pytest.mark.parametrize("filtering", [False, True])
def test_every_prompt_is_streamed_or_left_for_the_end_once(make_generator, filtering):
    """Rollouts end at other times; with filtering a third of the groups is dropped, and there is surplus."""

    def respond(prompt, size):
        scores = [1.0] * size if filtering and prompt % 3 == 0 else [1.0, 0.0] * (size // 2)
        return [(prompt * 37 % 50 + 1, score) for score in scores]

    generator = make_generator(40, respond, filtering=filtering, **ONE_SIZE)
    generator.stream = Sent()
    trained, streamed = [], 0
    while generator.queue.episode == 1:
        samples = generator.generate_samples()[0]
        if not hasattr(samples, "stream"):  # the data are used up
            break
        assert samples.stream is generator.stream
        assert len(samples) // 4 + len(generator.stream.sent) == 4
        trained += prompts_of(samples) + [int(group.prompt.text) for group in generator.stream.sent]
        streamed += len(generator.stream.sent)
        assert generator.metrics["stream/sample_share"] == len(generator.stream.sent) / 4
    first = trained[: len(set(trained))]
    assert len(set(first)) == len(first) and streamed > 10
    assert set(trained) == {prompt for prompt in range(40) if not filtering or prompt % 3}

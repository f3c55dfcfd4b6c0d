"""Dynamic sampling on one real vLLM engine (one_engine.py): each test is a few steps of the scheduler."""

import http.server
import json
import threading
import time

import pytest
import ray
from one_engine import ENGINE_ARGS, SLOW, of_vllm, take_step, unfinished

from openrlhf_sagc.driver.experience import group_sizes_of

pytestmark = pytest.mark.stack
FILTER = ["--algo.dynamic_filtering_enable"]
SHORT = set(range(2, 9))  # of the nine prompts that a first step asks for, where 0 and 1 are long


def test_an_engine_has_its_engine_args(engine):
    """Without them it has 128 slots and blocks of 128 tokens, whatever the processor."""

    def read(actor):
        config = actor.llm.vllm_config
        slots, block = config.scheduler_config.max_num_seqs, config.cache_config.block_size
        return slots, block, actor.kwargs["compilation_config"]

    assert ray.get(engine.__ray_call__.remote(read)) == tuple(ENGINE_ARGS.values())


def test_groups_without_a_signal_are_dropped_and_counted_by_reason(make_scheduler):
    words = ["mixed", "right", "wrong", "half", "mixed", "right", "mixed", "mixed", "mixed"]
    scheduler = make_scheduler(
        [f"{10 + 100 * i} {word}" for i, word in enumerate(words)] + [f"{SLOW} mixed"] * 20, *FILTER
    )
    prompts, lengths, metrics, (_, pass_rate, consumed, _) = take_step(scheduler)
    assert prompts == [0, 4, 6, 7]
    assert lengths == [10 + 100 * i for i in prompts for _ in range(4)]
    reasons = ("all_right", "all_wrong", "constant", "out_of_range", "reward_missing")
    assert [metrics[f"dropped_{reason}"] for reason in reasons] == [2, 1, 1, 0, 0]
    late = metrics["discarded"]  # a ninth group, if it came back before the eighth was judged
    assert consumed == 8 and pass_rate == pytest.approx(100 * (4 + late) / (8 + late))
    assert metrics["dispatched"] > 8


def test_a_step_ends_with_its_groups_and_vllm_forgets_the_rest(make_scheduler, engine):
    """The long ones are stopped, come back first, and are rolled out in full length by the step that waits for them.

    The step may roll out one prompt more than it trains, as it expects to drop some. That one is the next step's first.
    """
    scheduler = make_scheduler([f"{SLOW} mixed"] * 2 + ["8 mixed"] * 7 + ["20 mixed"] * 20, *FILTER)
    first, _, metrics, _ = take_step(scheduler)
    assert len(first) == 4 and set(first) <= SHORT
    assert metrics["aborted"] >= 2 and metrics["aborted"] + metrics["discarded"] == metrics["queued_prompts"] == 5
    assert 0 < metrics["aborted_tokens"] < 2 * 4 * SLOW
    assert unfinished(engine) == 0
    prompts, lengths, metrics, _ = take_step(scheduler)
    assert set(prompts) <= {0, 1} | SHORT - set(first)
    owed = {0, 1} - set(prompts)
    assert len(owed) <= 1 and lengths.count(SLOW) == 4 * (2 - len(owed))
    assert {scheduler.numbers.get(prompt.text) for prompt in scheduler.queue.waiting} >= owed
    assert scheduler.metrics["rollout/age_max"] == 0


def test_kept_rollouts_go_on_in_the_next_step_with_their_age(make_scheduler, engine):
    labels = [f"{SLOW} mixed"] * 2 + ["8 mixed"] * 7 + [f"{SLOW - 1} mixed"] * 20
    scheduler = make_scheduler(labels, *FILTER, "--algo.dynamic_filtering_surplus", "keep")
    first, _, metrics, _ = take_step(scheduler)
    assert len(first) == 4 and set(first) <= SHORT
    assert metrics["kept_running"] >= 2 and metrics["kept"] + metrics["kept_running"] == 5
    assert metrics["aborted"] == metrics["discarded"] == metrics["queued_prompts"] == 0
    running, decoded = unfinished(engine), of_vllm(engine, "generation_tokens")
    assert running >= 8 and decoded[0] > 0
    state = scheduler.state_dict()
    time.sleep(0.5)
    assert (unfinished(engine), of_vllm(engine, "generation_tokens")) == (running, decoded)  # while the weights change
    prompts, lengths, metrics, _ = take_step(scheduler)
    assert {0, 1} < set(prompts) <= {0, 1} | (SHORT - set(first)) and lengths.count(SLOW) == 8
    assert scheduler.metrics["rollout/age_max"] == metrics["discarded"] == 1  # the fifth would be two updates late
    scheduler.engines.resume()
    list(scheduler.engines.stop())
    assert unfinished(engine) == 0

    resumed = make_scheduler(labels, *FILTER, "--algo.dynamic_filtering_surplus", "keep")
    resumed.load_state_dict(state)
    prompts, lengths, metrics, _ = take_step(resumed)
    owed = {0, 1} - set(prompts)  # where three groups were kept, the step asks for one more
    assert len(owed) <= 1 and lengths.count(SLOW) == 4 * (2 - len(owed))  # rolled out again, in full
    assert {resumed.numbers.get(prompt.text) for prompt in resumed.queue.waiting} >= owed


@pytest.mark.parametrize("word, reason", [("wrong", "all wrong"), ("right", "all right")])
def test_data_without_a_signal_end_the_run_in_seconds(make_scheduler, engine, word, reason):
    scheduler = make_scheduler([f"8 {word}"] * 48, *FILTER)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"40 prompts of 4 samples gave 0 of the 4 .* \(dropped: 40 {reason}\)"):
        take_step(scheduler)
    assert time.monotonic() - start < 60
    assert unfinished(engine) == 0


def test_at_the_cap_a_step_may_train_on_what_there_is(make_scheduler):
    flags = ["--algo.dynamic_filtering_max_gen_batches", 3, "--algo.dynamic_filtering_at_cap", "keep"]
    scheduler = make_scheduler(["8 mixed"] + ["8 wrong"] * 47, *FILTER, *flags)
    prompts, _, metrics, (samples, pass_rate, consumed, _) = take_step(scheduler)
    assert (prompts, len(samples), consumed, metrics["missing"]) == ([0], 4, 12, 3)
    assert pass_rate == pytest.approx(100 / 12)


def test_the_chosen_size_holds_for_refills_and_the_queue_survives_a_resume(make_scheduler, engine):
    labels = [f"{10 + 7 * i % 50} {'wrong' if i % 3 == 0 else 'mixed'}" for i in range(48)]
    flags = [
        "--rollout.sagc.enable",
        "--rollout.sagc.group_sizes",
        4,
        8,
        "--rollout.sagc.objective",
        "size",
        "--algo.dynamic_filtering_enable",
    ]
    scheduler = make_scheduler(labels, *flags)
    sizes, dropped = [], 0
    while len(sizes) < 3 or not scheduler.queue.waiting:  # what a step puts back depends on who finishes first
        assert len(sizes) < 12
        _, _, metrics, (samples, *_) = take_step(scheduler)
        sizes.append(set(group_sizes_of(samples)))
        assert sizes[-1] == {int(metrics["sagc/group_size"])} and len(samples) == 16
        dropped += metrics["dropped_all_wrong"]
    assert {8} in sizes and dropped > 0
    waiting = [prompt.text for prompt in scheduler.queue.waiting]
    resumed = make_scheduler(labels, *flags)
    resumed.load_state_dict(scheduler.state_dict())
    assert waiting and [prompt.text for prompt in resumed.queue.waiting] == waiting
    trained = {prompt for _ in range(4) for prompt in take_step(resumed)[0]}
    assert trained >= {number for number in map(scheduler.numbers.get, waiting) if number % 3}


@pytest.mark.parametrize("word, failure", [("raise", "KeyError: 'answer' (labelled_agent.py:"), ("nan", "reward nan")])
def test_agent_without_a_reward_costs_its_group_and_many_of_them_end_the_run(make_scheduler, word, failure):
    scheduler = make_scheduler([f"8 {word}"] + ["16 mixed"] * 47, "--reward.max_failure_share", 0.25)
    prompts, _, metrics, _ = take_step(scheduler)
    assert prompts == [1, 2, 3, 4]
    assert (metrics["dropped_reward_missing"], metrics["rollout/reward_failures"]) == (1, 4)
    scheduler = make_scheduler([f"8 {word}"] * 48)
    with pytest.raises(
        RuntimeError, match="--train.agent_func_path .* samples lack a reward after at most 3 attempts"
    ) as error:
        take_step(scheduler)
    assert failure in str(error.value)


def test_sample_of_an_agent_that_raised_is_generated_again(make_scheduler):
    prompts, _, metrics, _ = take_step(make_scheduler(["8 flaky"] * 48))
    assert (prompts, metrics["rollout/reward_failures"]) == ([0, 1, 2, 3], 0)


FUNCTION = """
import time

def reward_func(queries, prompts, labels, **kwargs):
    word = labels[0].split()[1]
    if word == "raise":
        raise ValueError("no parse")
    if word == "hang":
        time.sleep(30)
    return {"rewards": {"nan": [float("nan")], "none": [], "two": [1.0, 2.0]}.get(word, [1.0])}
"""


@pytest.mark.parametrize(
    "word, failure",
    [
        ("raise", "ValueError: no parse (reward.py:7)"),
        ("hang", "did not answer within 2 s"),
        ("nan", "returned reward nan"),
        ("none", "returned 0 rewards for 1 sample"),
        ("two", "returned 2 rewards for 1 sample"),
    ],
)
def test_reward_function_that_fails(make_scheduler, tmp_path, word, failure):
    """A single bad prompt costs its group; where all are bad the run ends with the reward and the first failure."""
    (tmp_path / "reward.py").write_text(FUNCTION)
    reward = ("--reward.remote_url", tmp_path / "reward.py")
    flags = ["--reward.timeout", 2 if word == "hang" else 30, "--reward.retries", 1]
    scheduler = make_scheduler(["0 fine", f"0 {word}"] + ["0 fine"] * 46, *flags, reward=reward)
    scheduler.args.reward.max_failure_share = 0.25
    prompts, _, metrics, (samples, *_) = take_step(scheduler, max_new_tokens=8)
    assert prompts == [0, 2, 3, 4] and all(made.sample.reward == 1.0 for made in samples)
    assert (metrics["dropped_reward_missing"], metrics["rollout/reward_failures"]) == (1, 4)
    scheduler = make_scheduler([f"0 {word}"] * 48, *flags, reward=reward)
    with pytest.raises(RuntimeError, match=r"of \d+ samples lack a reward after at most 2 attempts, first: ") as error:
        take_step(scheduler, max_new_tokens=8)
    assert failure in str(error.value) and str(tmp_path / "reward.py") in str(error.value)


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as OpenRLHF's serve_rm does, or fails as the label says; its first answer ever is a 503."""

    answered = 0

    def do_POST(self):
        sample = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        word = sample["labels"][0].split()[1]
        Server.answered += 1
        if word == "hang":
            time.sleep(30)
        status = 503 if Server.answered == 1 else 400 if word == "error" else 200
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"rewards": [0.5], "scores": [0.5], "extra_logs": {}}).encode())

    def log_error(self, *args):
        pass

    def log_message(self, *args):
        pass


def serve(port=0):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture
def server():
    server = serve()
    yield server
    server.shutdown()
    server.server_close()


def test_reward_server_that_fails_hangs_or_goes_away_for_seconds(make_scheduler, server):
    url = f"http://127.0.0.1:{server.server_port}/get_reward"
    Server.answered = 0

    def make(word, timeout):
        flags = ["--reward.timeout", timeout, "--reward.retries", 1]
        return make_scheduler([f"0 {word}"] * 48, *flags, reward=("--reward.remote_url", url))

    prompts, _, metrics, (samples, *_) = take_step(make("fine", 30), max_new_tokens=8)
    assert (len(samples), metrics["rollout/reward_failures"]) == (16, 0)  # the 503 was asked again
    assert all(made.sample.reward == made.sample.score == 0.5 for made in samples)
    for word, timeout, failure in (("error", 30, "400"), ("hang", 0.5, "did not answer within 0.5 s")):
        with pytest.raises(RuntimeError, match="samples lack a reward after at most 2 attempts, first: ") as error:
            take_step(make(word, timeout), max_new_tokens=8)
        assert failure in str(error.value) and url in str(error.value)
    server.shutdown()
    server.server_close()
    again = []  # the server, which comes back when its samples have been without it for some seconds
    threading.Timer(8, lambda: again.append(serve(server.server_port))).start()
    _, _, metrics, (samples, *_) = take_step(make("fine", 30), max_new_tokens=8)
    assert (len(samples), metrics["rollout/reward_failures"]) == (16, 0)
    again[0].shutdown()
    again[0].server_close()

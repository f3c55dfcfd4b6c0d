"""Tail batching on one real vLLM engine (one_engine.py), with what vLLM itself says of stopped rollouts; and a whole run."""

import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
from one_engine import MAX_LEN, SLOW, of_vllm, take_step, unfinished
from real_runs import AGENTS

pytestmark = pytest.mark.stack
PROMPTS_ONLY = ["--rollout.tail_batching.enable", "--rollout.tail_batching.method", "stop"]
TAIL = [*PROMPTS_ONLY, "--rollout.tail_batching.response_ratio", 1.25]


def test_slow_prompts_wait_for_a_long_round(make_scheduler, engine):
    """Every fifth prompt is slow: four short rounds without them, then a long one of these four, in full length."""
    scheduler = make_scheduler([f"{SLOW if i % 5 == 0 else 8} mixed" for i in range(48)], *PROMPTS_ONLY)
    for step in range(4):
        prompts, lengths, metrics, _ = take_step(scheduler)
        assert prompts == [5 * step + i for i in (1, 2, 3, 4)] and set(lengths) == {8}
        assert (metrics["tail_batching/long_round"], metrics["queued_prompts"]) == (0, step + 1)
        assert unfinished(engine) == 0 and metrics["token_weight/step_weight"] == 1
    prompts, lengths, metrics, _ = take_step(scheduler)
    assert prompts == [0, 5, 10, 15] and set(lengths) == {SLOW}
    assert (metrics["tail_batching/long_round"], metrics["queued_prompts"]) == (1, 0)
    ratio = 5 * SLOW / (SLOW + 4 * 8)  # to the mean length of these five rounds of 4 groups
    assert metrics["token_weight/step_weight"] == pytest.approx(ratio / (1 + (ratio - 1) / 4))


def test_the_first_rollouts_of_a_prompt_are_trained_and_its_last_one_stopped(make_scheduler, engine):
    scheduler = make_scheduler([f"8+{SLOW} mixed"] * 48, *TAIL)
    prompts, lengths, metrics, _ = take_step(scheduler)
    assert prompts == [0, 1, 2, 3] and lengths == [8] * 16
    assert 0 < metrics["aborted_tokens"] < 5 * SLOW and unfinished(engine) == 0


def next_groups(engines, step):
    """The groups that come back next."""
    while not (back := step.receive(engines.ended())):
        engines.stop_surplus(step.take_surplus())
    return back


def test_stopped_rollouts_leave_vllm_while_others_run_on(make_scheduler, engine):
    """Prompt 0 is done but for its straggler when vLLM drops that; prompt 1 decodes on with all the room there is.

    A rollout takes one block of vLLM's KV cache, which holds MAX_LEN tokens. Where the test's process waited so long for a
    core that it saw too little, the next two prompts try again.
    """
    scheduler = make_scheduler([f"300+{SLOW} mixed", f"{SLOW} mixed"] * 24, *TAIL)
    step = scheduler.planner.begin(scheduler.queue)
    step.round, step.max_dispatched = step.round._replace(prompt_ratio=1.0), 16
    scheduler.engines.resume({"max_len": MAX_LEN, "max_new_tokens": SLOW, "temperature": 1.0})
    # What vLLM said until the first prompt was back, and then until the second one was; stopped rollouts of the first.
    before, after, stopped = [], [], []
    while not (stopped and stopped[0].tokens < 500 and 10 in (busy for busy, _ in before) and len(after) >= 50):
        step.num_groups = 2
        groups = step.dispatch()
        assert groups, "in eight tries no straggler was stopped at once while vLLM was watched"
        scheduler.engines.dispatch(groups)
        with ThreadPoolExecutor(1) as pool:
            gauges, backs = ([], []), []
            while len(backs) < len(groups):  # both may come back at once
                waiting, seen = pool.submit(next_groups, scheduler.engines, step), gauges[len(backs)]
                while not waiting.done():
                    seen.append(of_vllm(engine, "num_requests_running", "kv_cache_usage_perc"))
                backs += waiting.result()
        before, after = gauges
        first, second = backs
        assert [first.group, second.group] == groups
        stopped = [rollout for rollout in first.rollouts if rollout.stopped]
        assert len(stopped) <= 1 and all(rollout.tokens >= 290 for rollout in stopped)  # a few behind the others
        assert sum(not rollout.stopped for rollout in second.rollouts) >= 4
    assert statistics.mode(busy for busy, _ in after) == 5  # the second prompt's, all the time
    alone = statistics.mode(cache for busy, cache in after if busy == 5)
    assert alone == pytest.approx(max(cache for busy, cache in before if busy == 10) / 2)


def test_waiting_prompts_survive_a_resume(make_scheduler):
    labels = [f"{SLOW if i % 5 == 0 else 8} mixed" for i in range(48)]
    scheduler = make_scheduler(labels, *PROMPTS_ONLY)
    for _ in range(2):
        take_step(scheduler)
    waiting = [scheduler.numbers[prompt.text] for prompt in scheduler.queue.waiting]
    resumed = make_scheduler(labels, *PROMPTS_ONLY)
    resumed.load_state_dict(scheduler.state_dict())
    steps = [take_step(resumed)[0] for _ in range(3)]
    assert waiting == [0, 5] and {0, 5} <= set(steps[-1])


def test_a_killed_asynchronous_run_goes_on_with_its_rounds_and_loses_no_prompt(train, tmp_path, monkeypatch):
    """48 prompts of which a third is slow, 8 a step, killed after the checkpoint of the third step.

    Two engines share the ten rollouts of each prompt. The first eight to finish stop the others on both; every engine has
    a slow one.
    """
    log = tmp_path / "rollouts"
    monkeypatch.setenv("ROLLOUT_LOG", str(log))
    flags = {
        "reward__remote_url": None,
        "train__agent_func_path": AGENTS / "scripted_agent.py",
        "rollout__tail_batching__enable": True,
        "rollout__tail_batching__method": "stop",
        "rollout__tail_batching__response_ratio": 1.25,
        "rollout__length_aware_dispatch": True,
        "algo__dynamic_filtering_enable": True,
        "algo__dynamic_filtering_range": [0, 1],
        "vllm__num_engines": 2,
        "train__async_enable": True,
        "ckpt__path": tmp_path / "checkpoints",
        "ckpt__save_steps": 3,
        "rollout__trace": tmp_path / "run.csv",
    }
    killed = train("cpu-patched", kill_at="Global step 4:", **flags).scalars
    assert killed["dynamic_filtering/queued_prompts"][3] > 0
    lines = log.read_text().splitlines()
    resumed = train("cpu-patched", ckpt__load_enable=True, **flags).scalars
    last = resumed.index[-1]
    assert resumed.index[0] == 4 and (resumed["rollout/num_samples"] == 64).all()
    assert last in (6, 7)  # the surplus of the last short round may be of the next episode
    rounds = [*killed["tail_batching/long_round"].loc[:3], *resumed["tail_batching/long_round"]]
    assert resumed["tail_batching/long_share"][last] == pytest.approx(sum(rounds) / last) and 0 < sum(rounds) < last
    finished = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert len(finished) == 48 and min(finished.values()) >= 8  # rollouts of each prompt
    engines = Counter(
        line.split()[0] for line in set(lines)
    )  # of the first run, that finished rollouts of each prompt
    assert max(engines.values()) == 2 and engines.total() > 1.5 * len(engines)
    rows = pd.read_csv(tmp_path / "run.csv")
    stopped_G = rows["stopped"].groupby(rows["sample_id"].str.partition("-")[0]).sum()
    assert (stopped_G == 2).any()  # eight of ten were enough, and no engine has had eight of them

"""Threads of a reward function: they live on, one that hangs is replaced, and no call fails by the work of others."""

import asyncio
import gc
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from engine_actor import Actor, calls, run

import openrlhf_sagc.engine.reward_threads as reward_threads
from openrlhf_sagc.decisions.records import ROLLOUT
from openrlhf_sagc.engine.running_rollouts import current_rollout

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
COMPUTES = "end = time.thread_time() + labels[0]\n    while time.thread_time() < end: pass"
WAITED = "the reward function did not answer within {:g} s in which it computed nothing"
COMPUTED = "the reward function did not answer within {:g} s of computing"


@pytest.fixture(autouse=True)
def five_threads(monkeypatch):
    monkeypatch.setattr(reward_threads.os, "cpu_count", lambda: 1)


async def rollouts(executor, labels, **limits):
    actor = Actor(executor, retries=0, **limits)
    return await asyncio.gather(*map(actor.rollout, labels))


def failures(responses):
    return [response[ROLLOUT].failure for response in responses]


def test_what_a_function_keeps_for_its_thread_is_made_once_a_thread(reward_file):
    """In two steps, as in asyncio.to_thread; a call that hangs costs its own thread and no other."""
    body = "once.kept = getattr(once, 'kept', None) or made.append(1) or 1\n    labels[0] == 'hangs' and free.wait(20)"
    executor = reward_file(f"{body}\n    return dict(rewards=1.0)")
    names = executor.reward_func.__globals__
    names |= {"once": threading.local(), "made": []}

    async def steps():
        actor, given_up = Actor(executor, timeout=1.0), 0  # a busy machine may hold up a call that does not hang
        for step in range(4):
            if step == 2:
                before = len(names["made"]) - given_up
                failed = (await actor.rollout("hangs"))[ROLLOUT].failure
            responses = await asyncio.gather(*[actor.rollout() for _ in range(32)])
            given_up += len(responses) - failures(responses).count(None)
        return before, failed, len(names["made"]) - given_up

    before, failed, after = run(steps())
    # Of 64 and 129 calls. Five may run at a time, and the one that hangs keeps a sixth; a machine that stalls costs a few more.
    assert before <= 8 and failed == WAITED.format(1) and after <= before + 4


def test_other_calls_computing_fails_no_call(reward_file):
    """Five at once compute half a second each, which takes each of them longer than the two seconds that it may compute."""
    executor = reward_file(f"{COMPUTES}\n    return dict(rewards=1.0)")
    responses = run(rollouts(executor, [0.5] * 5, timeout=2.0))
    assert failures(responses) == [None] * 5
    assert max(response[ROLLOUT].seconds for response in responses) > 2.0


def test_a_call_is_given_up_for_what_it_does_itself(reward_file):
    """One computes for ever, and beside it one waits for ever: neither takes the other's work for its own."""
    waits = "labels[0] or free.wait(20)\n    while labels[0] > 1 and not free.is_set(): pass"
    executor = reward_file(f"{waits}\n    return dict(rewards=1.0)")
    assert failures(run(rollouts(executor, [0, 2, 1], timeout=1.0))) == [WAITED.format(1), COMPUTED.format(1), None]


@pytest.mark.parametrize(
    "share, late, seconds, cause",
    [
        (0.0, 0.0, 10, "in which it computed nothing"),
        (0.0005, 0.0, 10, "in which it computed nothing"),  # it looks twenty times a second whether it may go on
        (0.01, 0.0, 1000, "of computing"),  # a hundred others compute
        (1.0, 0.0, 10, "of computing"),
        (0.0, 4.0, 50, "in which it computed nothing"),  # another call holds the interpreter for 4.5 s at a time
    ],
)
def test_seconds_until_a_call_is_given_up(monkeypatch, share, late, seconds, cause):
    """On a clock that moves with the looks, `late` seconds further than asked for, of a call that computes for a share of it."""
    now = [0.0]

    async def wait(calls, timeout):
        now[0] += timeout + late

    monkeypatch.setattr(reward_threads.asyncio, "wait", wait)
    monkeypatch.setattr(reward_threads.time, "monotonic", lambda: now[0])
    call = SimpleNamespace(computed=lambda: share * now[0], outcome=SimpleNamespace(done=lambda: False))
    line = reward_threads._why_given_up(call, None, 10.0).send
    with pytest.raises(StopIteration) as ended:
        line(None)
    assert cause in ended.value.value and now[0] == pytest.approx(seconds, rel=0.1)


def test_a_call_that_hangs_blocks_no_exit():
    program = (
        "import asyncio, threading\n"
        "from openrlhf_sagc.engine.reward_threads import RewardThreads\n"
        "async def check():\n"
        "    threads = RewardThreads(0.2)\n"
        "    print(await threads.call(sum, [1, 2]))\n"
        "    await threads.call(threading.Event().wait)\n"
        "try: asyncio.run(check())\n"
        "except Exception as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0 and ended.stderr == ""
    assert ended.stdout.splitlines() == ["3", WAITED.format(0.2)]


def test_a_function_runs_in_the_context_of_its_rollout(reward_file):
    """As in asyncio.to_thread: an agent's own context variables are there."""
    executor = reward_file("return dict(rewards=float(current.get().tokens))")
    executor.reward_func.__globals__["current"] = current_rollout
    assert run(rollouts(executor, [""]))[0]["reward"] == 5.0


def test_hung_calls_neither_block_others_nor_count_their_wait(reward_file):
    executor = reward_file("free.wait(20) if labels[0] else time.sleep(0.02)\n    return dict(rewards=1.0)")

    async def rollouts():
        actor = Actor(executor, timeout=3.0)
        return await asyncio.gather(*(actor.rollout(label=number < 5) for number in range(45)))

    responses = run(rollouts())
    assert failures(responses) == [WAITED.format(3)] * 5 + [None] * 40
    assert max(response[ROLLOUT].seconds for response in responses[5:]) > 3.0  # waited longer than a call may take


def test_a_function_that_hangs_again_and_again_is_called_no_more(reward_file, monkeypatch):
    monkeypatch.setattr(reward_threads, "MOST_HUNG", 3)
    executor = reward_file("free.wait(20)")

    async def rollouts():
        actor = Actor(executor, timeout=0.2, retries=0)
        return [(await actor.rollout())[ROLLOUT].failure for _ in range(5)]

    reasons = run(rollouts())
    hang = "3 calls of the reward function hang, so that no more are made"
    assert reasons == [WAITED.format(0.2)] * 3 + [hang] * 2
    assert len(calls(executor)) == 3


def test_stopped_calls_leave_their_slots_to_the_next_rewards(reward_file, monkeypatch):
    """Seven stops while the function hangs: their calls run on in at most as many threads as may hang."""
    monkeypatch.setattr(reward_threads, "MOST_HUNG", 20)
    executor = reward_file("labels[0] and free.wait(20)\n    return dict(rewards=1.0)")

    async def stopped(actor):
        rollouts = [asyncio.create_task(actor.rollout("hangs")) for _ in range(8)]
        while sum(rollout.reward_seconds > 0 for rollout in actor.executor.running) < 8:  # each asks for its reward
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        await actor.executor.stop()
        assert all(response[ROLLOUT].stopped for response in await asyncio.gather(*rollouts))

    async def check():
        actor = Actor(executor, timeout=60.0)
        others = [thread for thread in threading.enumerate() if thread.name == reward_threads.THREAD]  # of other tests
        for _ in range(3):
            await stopped(actor)
        answers = [(await actor.rollout(""))["reward"] for _ in range(8)]
        for _ in range(4):
            await stopped(actor)
        running = [thread for thread in threading.enumerate() if thread.name == reward_threads.THREAD]
        assert 15 < len(set(running) - set(others)) <= 25
        executor.reward_func.__globals__["free"].set()
        return answers + [(await actor.rollout(""))["reward"] for _ in range(8)]

    assert run(check()) == [1.0] * 16


def test_what_a_stopped_call_raises_later_is_no_matter(reward_file):
    executor = reward_file("free.wait(20)\n    over.set()\n    raise ValueError(labels[0])")
    over, reported = threading.Event(), []
    executor.reward_func.__globals__["over"] = over

    async def check():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        actor = Actor(executor, timeout=60.0)
        rollout = asyncio.create_task(actor.rollout("gone"))
        await asyncio.sleep(0.1)
        await actor.executor.stop()
        assert (await rollout)[ROLLOUT].stopped
        executor.reward_func.__globals__["free"].set()
        await asyncio.to_thread(over.wait, 20)
        await asyncio.sleep(0.05)
        gc.collect()

    run(check())
    assert reported == []

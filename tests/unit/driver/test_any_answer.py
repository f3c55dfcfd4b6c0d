"""Whatever an agent, a reward function or a server answers becomes a sample like all others, or a failure with its reason."""

import asyncio
import pickle
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_actor import VOCABULARY, Actor, run
from fake_engines import ONE_SIZE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.experience import make_experience_batch, split_experience_batch
from openrlhf.utils.agent import SingleTurnAgentExecutor

from openrlhf_sagc.decisions.records import ROLLOUT, Group, Prompt
from openrlhf_sagc.driver.experience import stamped
from openrlhf_sagc.driver.samples import batch_of
from openrlhf_sagc.training.training import StepShare

MAX_LEN = 9


class Odd:
    """Of a class that the driver does not know, and that nobody can print, copy or measure."""

    def __repr__(self):
        raise RuntimeError

    def __deepcopy__(self, memo):
        raise RuntimeError

    def __reduce__(self):
        raise RuntimeError


async def coroutine():
    pass


def odd_values():
    """Values of any kind, made anew for each answer."""
    numbers = st.floats(width=64) | st.integers() | st.just(10**400) | st.complex_numbers() | st.booleans()
    made = [
        Odd,
        coroutine,
        lambda: (x for x in "ab"),
        lambda: Fraction(1, 3),
        lambda: np.float16(0.5),
        dict,
        lambda: print,
    ]
    made += [lambda: torch.ones(2, 2), lambda: torch.tensor(1.0), lambda: np.array(["a"]), lambda: np.bool_(True), set]
    plain = st.none() | st.text(max_size=3) | numbers | st.sampled_from(made).map(lambda make: make())
    return st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=4)


def mostly(good):
    return st.one_of(good, good, good, odd_values())


def responses():
    """Responses of an agent, most fields of which are as they should be."""
    places = st.integers(-1, MAX_LEN + 2)
    tokens = st.lists(st.integers(-1, VOCABULARY), min_size=1, max_size=MAX_LEN + 2)
    return st.fixed_dictionaries(
        {
            "observation_tokens": mostly(tokens | tokens.map(tuple) | tokens.map(torch.tensor) | tokens.map(np.array)),
            "action_ranges": mostly(st.lists(st.tuples(places, places), max_size=3)),
            "reward": mostly(st.sampled_from([0, 1.0, True, torch.tensor([0.5]), np.float32(2)])),
        },
        optional={
            "prompt": odd_values(),
            "label": odd_values(),
            "images": odd_values(),
            "scores": mostly(st.floats(0, 1)),
            "truncated": mostly(st.booleans()),
            "rollout_log_probs": mostly(st.lists(st.floats(-9, 0), min_size=1, max_size=MAX_LEN + 2)),
            "extra_logs": mostly(st.dictionaries(st.text(max_size=4) | st.integers(), odd_values(), max_size=3)),
            "memory": odd_values(),
        },
    )


class Kill(BaseException):
    """Of a library of the user's."""


ERRORS = [ValueError("a"), KeyError(), SystemExit(1), KeyboardInterrupt(), StopIteration(), StopAsyncIteration()]
ERRORS += [asyncio.CancelledError(), GeneratorExit(), Kill(), MemoryError(), RecursionError(), TimeoutError()]


class Answers:
    """An agent that answers what it is given, one for each rollout."""

    def __init__(self, answers):
        self.answers = iter(answers)

    async def execute(self, llm_engine, sampling_params, **kwargs):
        answer = next(self.answers)
        await llm_engine.generate([1, 2], sampling_params)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def rolled_out(executor, count, logprobs=None):
    async def rollouts():
        actor = Actor(executor)
        request = actor.request(max_tokens=1) | {"max_length": MAX_LEN}
        request["sampling_params"] = SimpleNamespace(max_tokens=1, logprobs=logprobs)
        return await asyncio.gather(*(actor.executor.execute(**request) for _ in range(count)))

    return [pickle.loads(pickle.dumps(response)) for response in run(rollouts())]  # its way to the driver


def assert_trained_together(generator, responses):
    """Each is a failure with a reason, or a sample that makes micro-batches with all others."""
    samples = []
    for response in responses:
        sample = generator._sample_of(response, max_len=MAX_LEN)
        failure = response[ROLLOUT].failure
        assert bool(failure) == (sample is None) and (not failure or failure == failure.strip() and len(failure) < 600)
        samples += [sample] if sample else []
    if not samples:
        return
    group = Group(0, 0, Prompt("", "", None, 1), len(samples), len(samples), samples=samples)
    made = batch_of([of_group.sample for of_group in stamped([group], StepShare(0.0, len(samples)))], [], 0)
    assert set(made.info) == {"response_clip_ratio", "reward", "score"}  # the same on every rank
    assert made.action_mask.any(dim=1).all() and torch.isfinite(made.rewards).all()
    assert made.sequences.min() >= 0 and made.sequences.max() < VOCABULARY
    batch = make_experience_batch(split_experience_batch(pickle.loads(pickle.dumps(made))))
    assert len(batch.rewards) == len(batch.scores) == len(batch.truncated) == len(samples)


MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines that an answer hides
@given(
    answers=st.lists(responses() | odd_values() | st.sampled_from(ERRORS), min_size=2, max_size=6),
    needed=st.booleans(),
)
@MANY
def test_any_agents(make_generator, answers, needed):
    generator = make_generator(4, **ONE_SIZE)
    assert_trained_together(generator, rolled_out(Answers(answers), len(answers), 1 if needed else None))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(
    answers=st.lists(
        st.fixed_dictionaries(
            {"rewards": mostly(st.floats(0, 1))},
            optional={
                "scores": mostly(st.floats(0, 1)),
                "extra_logs": odd_values() | st.dictionaries(st.text(), odd_values()),
            },
        )
        | odd_values()
        | st.sampled_from(ERRORS),
        min_size=2,
        max_size=6,
    )
)
@MANY
def test_any_reward_functions(make_generator, answers):
    left = list(answers)

    def reward_func(queries, prompts, labels):
        answer = left.pop()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    executor = SingleTurnAgentExecutor(None)
    executor.reward_func, executor.reward_endpoints = reward_func, ["reward.py"]
    assert_trained_together(make_generator(4, **ONE_SIZE), rolled_out(executor, len(answers)))

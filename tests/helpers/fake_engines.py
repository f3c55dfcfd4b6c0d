"""The scheduler without Ray or vLLM: engines that decode a token of every rollout per tick of a clock."""

import inspect
from functools import partial
from queue import Empty, SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flags import arguments_with
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

import openrlhf_sagc.driver.engines as engines_module
from openrlhf_sagc.decisions.records import ROLLOUT, AskBegun, Begun, Collect, CountDrafts, Ended, Rollout
from openrlhf_sagc.driver.rollout import StragglerAwareSamplesGenerator
from openrlhf_sagc.engine.rollouts import stop_left_over, stop_rollouts

PROMPT_TOKENS = 3
FLAGS = {
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 4,
    "rollout.max_new_tokens": 100,
    "rollout.sagc.enable": True,
    "rollout.sagc.group_sizes": [4, 8],
    "rollout.sagc.objective": "size",  # the other one follows the clock
    "train.batch_size": 8,
    "train.num_episodes": 2,
    "train.max_epochs": 1,
    "train.seed": 1,
    "train.agent_func_path": None,
    "train.partial_rollout_enable": False,
    "train.async_enable": False,
    "algo.dynamic_filtering_range": (0, 1),
    "reward.remote_url": ["reward.py"],
    "reward.timeout": 9.0,
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 1,
    "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
    "vllm.enable_sleep": False,
    "data.max_len": 200,
    "ckpt.path": "ckpt",
    "ckpt.save_steps": 1,
    "eval.steps": float("inf"),
    "rollout.micro_batch_size": 1,
    "train.dynamic_batch_enable": False,
    "algo.kl.init_coef": 0.01,
    "algo.kl.target": None,
    "train.enable_ema": False,
    "algo.advantage.is_correction_level": "off",
    "reward.num_nodes": 1,
    "reward.num_gpus_per_node": 1,
    "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 1,
    "ds.zero_stage": 2,
}


class Prompts:
    """A dataloader of prompts "0", "1", ..., one at a time, in this order; its state is the next prompt's number."""

    def __init__(self, count):
        self.count, self.next = count, 0
        self.sampler = SimpleNamespace(generator=torch.Generator())

    def __len__(self):
        return self.count

    def __iter__(self):
        while self.next < self.count:
            self.next += 1
            yield [""], [str(self.next - 1)], [""], [None]
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Running:
    """A rollout in an engine, until it is back."""

    def __init__(self, engine, share, place, prompt, answer, start, end):
        self.engine, self.group, self.place, self.prompt = engine, share.number, place, prompt
        self.is_told = False
        self.answers, self.start, self.end = [answer], start, end

    def begun(self, clock):
        """A token for each tick so far."""
        return Begun(np.arange(clock - self.start, dtype=np.int32), None, None) if clock > self.start else None


class Answer:
    """What stands for the Ray reference of a call that waits for what has ended, and for its future."""

    def __init__(self, returns, engine):
        self.returns, self.engine, self.ended, self.told = returns, engine, None, []

    def future(self):
        return self

    def add_done_callback(self, callback):
        assert self.engine not in self.returns.asked  # one at a time
        self.returns.asked[self.engine] = lambda: callback(self)

    def result(self):
        if self.told:
            return [[Ended(ref.group, ref.place, None) for ref in self.told]]
        return [[Ended(ref.group, ref.place, *self.returns.ray.respond(ref)) for ref in self.ended]]


class Returns(SimpleQueue):
    """In the place of the queue of answers: `get` waits for the first rollouts to end in an engine that was asked."""

    def __init__(self, ray):
        self.ray, ray.returns = ray, self
        self.running = []  # rollouts in the order of dispatch
        self.asked = {}  # by engine: puts its answer into this queue

    def get(self, timeout):
        if self.qsize():  # the wish to give the step up
            return super().get()
        if told := self._told():
            self.asked.pop(told[0].engine)()
            engine, answer = super().get()
            answer.told = told
            return engine, answer
        pending = [rollout for rollout in self.running if rollout.engine in self.asked]
        ready, _ = self.ray.wait(pending, num_returns=1, timeout=timeout) if pending else ([], [])
        if not ready:
            raise Empty
        (first,) = ready
        ended = [x for x in self.running if x.engine == first.engine and x.end <= self.ray.clock or x is first]
        if not self.ray.at_once:
            ended = [rollout for rollout in ended if rollout.group == first.group]
        self.running = [rollout for rollout in self.running if rollout not in ended]
        self.asked.pop(first.engine)()
        engine, answer = super().get()
        answer.ended = ended
        return engine, answer

    def _told(self):
        """The next rollouts of an engine that have nothing but their reward to come, if they do before any ends."""
        ray = self.ray
        waiting = [x for x in self.running if ray.reward_ticks and not x.is_told and x.engine in self.asked]
        waiting = [x for x in waiting if x.tells and x.start + x.answers[0][0] <= x.end - ray.reward_ticks]
        generated = {x: x.start + x.answers[0][0] for x in waiting}
        first = min(generated.values(), default=None)
        if first is None or any(x.end < max(first, ray.clock) for x in self.running if x.engine in self.asked):
            return []
        ray.clock = max(ray.clock, first)
        told = [x for x in waiting if generated[x] <= ray.clock]
        told = [x for x in told if x.engine == told[0].engine]
        for rollout in told:
            rollout.is_told = True
        return told


TAKEN = inspect.signature(RolloutRayActor.__ray_metadata__.modified_class.generate_responses)


class FakeRay:
    """`wait` moves the clock to the end of the next call; the result of one that still runs is stopped."""

    def __init__(self):
        self.clock = 0
        self.calls = []  # of methods of the engines
        self.together = False  # all calls end at once
        self.reward_ticks = 0  # that every reward takes
        self.at_once = False  # an engine's answer has all that has ended there, else only that of one group
        self.stops = []  # numbers of the groups of every stop but those of all groups
        self.requests = 0  # what an engine says it has to decode
        self.left_over = []  # requests of rollouts that are over, as each look at an engine finds them
        self.earlier = []  # responses that came with each dispatch
        self.drafts = {}  # counts of drafts between two looks at an engine
        self.draft_counts = dict.fromkeys(("tokens", "iterations", "drafted", "accepted", "mib"), 0)  # so far
        self.shares = []  # that were dispatched
        self.tokenizers = []  # that an engine was given for all its rollouts

    @property
    def asleep(self):
        return [method for method in self.calls if method in ("wake_up", "sleep")][-1:] == ["sleep"]

    def call_engines(self, engines, method):
        assert method != "sleep" or not self.returns.running  # what they decode would be lost
        self.calls.append(method)

    def run_in_engine(self, function, *args, **kwargs):
        if function is stop_left_over:
            return self.left_over.pop() if self.left_over else 0
        elif function is stop_rollouts and args:
            (groups,) = args
            self.stops.append(list(groups))
            for rollout in self.returns.running:
                if rollout.group in groups:
                    rollout.end = min(rollout.end, self.clock)

    def wait(self, pending, num_returns, timeout):
        first = min(pending, key=lambda ref: (ref.end, pending.index(ref)))
        if timeout < 10:  # after a stop
            first = first if first.end <= self.clock else pending[0]
            return [first], [ref for ref in pending if ref is not first]
        self.clock = max(self.clock, max(ref.end for ref in pending) if self.together else first.end)
        return [first], [ref for ref in pending if ref is not first]

    def get(self, refs, timeout=None):
        return refs

    def respond(self, ref):
        return [self.response(ref, *answer) for answer in ref.answers]

    def response(self, ref, tokens, score, seconds=None, failure=None):
        ticks = min(tokens, self.clock - ref.start, ref.end - ref.start)
        finished = min(self.clock, ref.end) - ref.start >= tokens + self.reward_ticks
        rollout = Rollout(
            tokens=ticks,
            seconds=(ticks if seconds is None else seconds) + 0.5,
            queue_seconds=0.5,
            finished=finished,
            stopped=not finished,
            failure=failure if finished else None,
        )
        fields = {"prompt": ref.prompt, "label": "", "images": None, ROLLOUT: rollout}
        if not finished:
            return fields
        reward = None if failure else score
        ranges, sequence = [(PROMPT_TOKENS, PROMPT_TOKENS + tokens)], [1] * (PROMPT_TOKENS + tokens)
        fields |= {"observation_tokens": sequence, "action_ranges": ranges, "rollout_log_probs": None}
        return fields | {"reward": reward, "scores": reward, "truncated": False, "extra_logs": {}}


@pytest.fixture
def make_generator(monkeypatch):
    """make_generator(prompts, respond, filtering, data, **flags), 16 samples a step: 4 prompts at size 4, 2 at size 8.

    respond(prompt, size) -> [(tokens, score[, seconds[, failure]]), ...]. Flags are those of --rollout.sagc, and of
    others with two underscores for the dot; `data` is what the run knows of its data.
    """

    ray = FakeRay()

    def generate_responses(actor, prompt, *more, **settings):
        TAKEN.bind(actor, prompt, *more, **settings)
        assert not ray.asleep
        if isinstance(prompt, CountDrafts):
            ray.draft_counts = {name: value + ray.drafts.get(name, 0) for name, value in ray.draft_counts.items()}
            return [[dict(ray.draft_counts), {"mib": 1.0}]]
        if isinstance(prompt, AskBegun):
            mine = [running for running in actor.seen.returns.running if running.engine == actor.index]
            return [{(running.group, running.place): running.begun(ray.clock) for running in mine}]
        if isinstance(prompt, Collect):
            return Answer(actor.seen.returns, actor.index)
        assert "hf_tokenizer" not in settings  # Ray would send it with every call
        seen = actor.seen
        ray.earlier.append(prompt.earlier)
        seen.dispatched_to.append([share.prompt.text for share in prompt.shares for _ in share.places])
        ray.shares += prompt.shares
        for share in prompt.shares:
            group, drawn = seen.flight.running[share.number].group, int(share.prompt.text)
            if share.number not in seen.answers:
                seen.drawn.append(drawn)
                seen.answers[share.number] = seen.respond(drawn, group.rollouts)
            answers = [seen.answers[share.number][place] for place in share.places]
            for place, answer in zip(share.places, answers):
                had = len(share.begun[place].tokens) if place in share.begun else 0
                start = ray.clock - had  # as if it had run all the time
                end = start + answer[0] + ray.reward_ticks
                seen.returns.running.append(Running(actor.index, share, place, share.prompt.text, answer, start, end))
                seen.returns.running[-1].tells = prompt.tells
        return SimpleNamespace(future=lambda: SimpleNamespace(add_done_callback=lambda callback: None))

    monkeypatch.setattr(engines_module, "SimpleQueue", lambda: Returns(ray))
    monkeypatch.setattr(engines_module.ray, "get", ray.get)
    monkeypatch.setattr(engines_module, "batch_vllm_engine_call", ray.call_engines)

    def make(
        prompts,
        respond=lambda prompt, size: [(10, 1.0)] * size,
        filtering=False,
        engines=1,
        data=None,
        engine_args=None,
        **flags,
    ):
        settings = FLAGS | {"algo.dynamic_filtering_enable": filtering}
        settings |= {
            name.replace("__", ".") if "__" in name else f"rollout.sagc.{name}": flags[name] for name in flags
        }
        args = arguments_with(settings)
        args.data.described = data or {}
        args.vllm.engine_args = engine_args or {}
        seen = SimpleNamespace(respond=respond, drawn=[], dispatched_to=[], answers={})
        actors = [
            SimpleNamespace(
                index=index,
                seen=seen,
                __ray_call__=SimpleNamespace(remote=ray.run_in_engine),
                generate_responses=SimpleNamespace(),
                set_tokenizer=SimpleNamespace(remote=ray.tokenizers.append),
                get_num_unfinished_requests=SimpleNamespace(remote=lambda: ray.requests),
            )
            for index in range(engines)
        ]
        for actor in actors:
            actor.generate_responses.remote = partial(generate_responses, actor)
        strategy = SimpleNamespace(args=args)
        generator = StragglerAwareSamplesGenerator(strategy, Prompts(prompts), None, "tokenizer", actors)
        seen.flight, seen.returns = generator.flight, ray.returns
        generator.ray, generator.drawn, generator.dispatched_to = ray, seen.drawn, seen.dispatched_to
        return generator

    return make


MIXED, RIGHT, WRONG = [1.0, 0.0, 1.0, 0.0], [1.0] * 4, [0.0] * 4  # scores of a group of four
ONE_SIZE = {"group_sizes": [4]}


def on_close(generator, note):
    """note(step) is called for every step that is closed from now on."""
    log = generator._log
    generator._log = lambda step: (note(step), log(step))


def prompts_of(samples):
    """Numbers of the prompts whose groups of four a step trains."""
    return [int(made.sample.prompt) for made in samples[::4]]


def run_episode(generator):
    """The steps of one episode as the trainer takes them: [(samples, pass rate, prompts consumed), ...]."""
    steps = []
    while True:
        samples, pass_rate, consumed, exhausted = generator.generate_samples()
        if samples:
            steps.append((samples, pass_rate, consumed))
        if exhausted:
            return steps

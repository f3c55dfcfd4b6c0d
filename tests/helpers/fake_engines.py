"""The scheduler without Ray or vLLM: engines that decode a token of every rollout per tick of a clock."""

from queue import Empty
from types import SimpleNamespace

import pytest
import torch
from flags import arguments_with
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

import openrlhf_sagc.driver.engines as engines_module
from openrlhf_sagc.actors.rollouts import keep_first, stop_left_over, stop_rollouts, watch_rollouts
from openrlhf_sagc.decisions.records import ROLLOUT, Rollout
from openrlhf_sagc.driver.rollout import StragglerAwareSamplesGenerator

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
        self.generator = torch.Generator()

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


class Dispatched:
    """What stands for the Ray reference of a call, for some or all of a group's rollouts."""

    def __init__(self, ray, group, prompt, answers, start, keep):
        self.ray, self.group = ray, group
        self.prompt, self.answers, self.start = prompt, answers, start
        rewarded = sorted(tokens for tokens, _, *rest in answers if not any(rest[1:]))
        every = max(tokens for tokens, *_ in answers)
        self.end = start + (rewarded[keep - 1] if keep and len(rewarded) >= keep else every)

    def future(self):
        return self

    def add_done_callback(self, callback):
        callback(self)  # which puts it into a `Returns`

    def result(self):
        return self.ray.respond(self)


class Returns:
    """In the place of the queue of calls that are back: it holds those that run, and `get` waits for the first."""

    def __init__(self, ray):
        self.ray, self.items = ray, []
        ray.returns = self

    def put(self, item):
        self.items.append(item)

    def get(self, timeout):
        pending = [future for _, future in self.items]
        ready, _ = self.ray.wait(pending, num_returns=1, timeout=timeout) if pending else ([], [])
        if not ready:
            raise Empty
        return self.items.pop(pending.index(ready[0]))


class FakeRay:
    """`wait` moves the clock to the end of the next call; the result of one that still runs is stopped."""

    def __init__(self):
        self.clock = 0
        self.calls = []  # of methods of the engines
        self.keep_first = None  # as the engines were told
        self.told = []  # every limit that one of them was told
        self.together = False  # all calls end at once
        self.stops = []  # numbers of the groups of every stop but those of all groups
        self.requests = 0  # what an engine says it has to decode
        self.left_over = []  # requests of rollouts that are over, as each look at an engine finds them
        self.tokenizers = []  # that an engine was given for all its rollouts

    def run_in_engine(self, function, *args, **kwargs):
        if function is keep_first:
            (self.keep_first,) = args
            self.told.append(self.keep_first)
        elif function is watch_rollouts:
            self.tokenizers.append(kwargs["tokenizer"])
        elif function is stop_left_over:
            return self.left_over.pop() if self.left_over else 0
        elif function is stop_rollouts and args:
            (groups,) = args
            self.stops.append(list(groups))
            for _, ref in self.returns.items:
                if ref.group in groups:
                    ref.end = min(ref.end, self.clock)

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
        finished = ticks == tokens
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

    def dispatch(self, prompts, labels, *, images, n_samples_per_prompt):
        assert self.tokenizer is None  # Ray would send it with every prompt
        seen, refs = self.vllm_engines[0].seen, []
        seen.dispatched_to.append(prompts)
        for prompt, label in zip(prompts, labels):
            group = seen.flight.running[label.group]
            if label.group not in seen.answers:
                seen.drawn.append(int(prompt))
                seen.answers[label.group] = seen.respond(int(prompt), group.rollouts)
                on = [[place for place in range(len(group.engines)) if group.engines[place] == e] for e in (0, 1, 2)]
                seen.places[label.group] = list(map(iter, on))
            answers = seen.answers[label.group]
            if group.engines:
                answers = [answers[next(seen.places[label.group][self.vllm_engines[0].index])]]
            assert len(answers) == n_samples_per_prompt
            refs.append(Dispatched(ray, label.group, prompt, answers, ray.clock, ray.keep_first))
        return refs

    monkeypatch.setattr(engines_module, "SimpleQueue", lambda: Returns(ray))
    monkeypatch.setattr(engines_module.ray, "get", ray.get)
    monkeypatch.setattr(engines_module, "batch_vllm_engine_call", lambda engines, method: ray.calls.append(method))
    monkeypatch.setattr(SamplesGenerator, "_dispatch_prompts_to_vllm", dispatch)

    def make(prompts, respond=lambda prompt, size: [(10, 1.0)] * size, filtering=False, engines=1, data=None, **flags):
        settings = FLAGS | {"algo.dynamic_filtering_enable": filtering}
        settings |= {
            name.replace("__", ".") if "__" in name else f"rollout.sagc.{name}": flags[name] for name in flags
        }
        args = arguments_with(settings)
        args.data.described = data or {}
        seen = SimpleNamespace(respond=respond, drawn=[], dispatched_to=[], answers={}, places={})
        actors = [
            SimpleNamespace(
                index=index,
                seen=seen,
                __ray_call__=SimpleNamespace(remote=ray.run_in_engine),
                get_num_unfinished_requests=SimpleNamespace(remote=lambda: ray.requests),
            )
            for index in range(engines)
        ]
        strategy = SimpleNamespace(args=args)
        generator = StragglerAwareSamplesGenerator(strategy, Prompts(prompts), None, "tokenizer", actors)
        seen.flight = generator.flight
        generator.ray, generator.drawn, generator.dispatched_to = ray, seen.drawn, seen.dispatched_to
        return generator

    return make


MIXED, RIGHT, WRONG = [1.0, 0.0, 1.0, 0.0], [1.0] * 4, [0.0] * 4  # scores of a group of four
ONE_SIZE = {"group_sizes": [4]}


def prompts_of(samples):
    """Numbers of the prompts whose groups of four a step trains."""
    return [int(sample.prompts[0]) for sample in samples[::4]]


def run_episode(generator):
    """The steps of one episode as the trainer takes them: [(samples, pass rate, prompts consumed), ...]."""
    steps = []
    while True:
        samples, pass_rate, consumed, exhausted = generator.generate_samples()
        if samples:
            steps.append((samples, pass_rate, consumed))
        if exhausted:
            return steps

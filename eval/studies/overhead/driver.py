"""What a step costs the driver, as it grows: CPU seconds of each part, ours and unpatched OpenRLHF's, on stub engines.

The functions are real: sending, taking back and judging groups of which every second one is dropped, making samples and
experiences, sending these to the policy's actors. Engines and actors are stubs in this process that answer at once. What is
sent and answered is pickled and copied as Ray does it, and each call counts for CALL_SECONDS, which is what Ray itself costs
the driver. The trees are in build/: cpu-base is unpatched.
"""

import argparse
import itertools
import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
from lib.paths import ROOT

SIZE, PROMPT_TOKENS, VOCABULARY = 8, 200, 150_000
TREES = {"ours": "cpu-patched", "unpatched": "cpu-base"}
BUDGET = 0.05 * 60.0  # seconds: 5 % of a step of a minute
CALL_SECONDS = 2e-4  # of a call through Ray and its answer
ROLLOUTS = {"ours": (2048, 8192, 32768), "unpatched": (64, 256, 512)}  # trained in a step
STORE = memoryview(bytearray(1 << 20))  # stands for Ray's, whose memory is used again and again
TITLE = "CPU seconds of the driver for a step, responses of 4,096 tokens"


class Meter:
    """CPU seconds by part. Parts may be nested; each has its own seconds alone, and what is `stopped` is in none."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._parts, self._since = ["stopped"], time.process_time()

    @contextmanager
    def part(self, name: str):
        self._close()
        self._parts.append(name)
        yield
        self._close()
        self._parts.pop()

    def timed(self, name: str, function):
        """The function, whose seconds are of this part."""

        def call(*args, **kwargs):
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def send(self, message) -> None:
        """A call through Ray: the message is pickled, and copied to Ray's store."""
        buffers: list[pickle.PickleBuffer] = []
        sent = [pickle.dumps(message, 5, buffer_callback=buffers.append), *(buffer.raw() for buffer in buffers)]
        for part in sent:
            for start in range(0, len(part), len(STORE)):
                STORE[: len(part) - start] = part[start : start + len(STORE)]
        self.seconds["ray's calls"] += CALL_SECONDS

    def _close(self) -> None:
        now = time.process_time()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now


class Ref:
    """Stands for the reference of an answer, and its future: unpickled where it is fetched."""

    def __init__(self, answer) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        self._pickled = pickle.dumps(answer, 5, buffer_callback=self._buffers.append)

    def result(self):
        return pickle.loads(self._pickled, buffers=self._buffers)

    def future(self):
        return self

    def exception(self):
        return None

    def add_done_callback(self, callback) -> None:
        callback(self)


class Put:
    """Stands for the reference of an object that is put: sent without the object."""

    def __init__(self, value) -> None:
        self.value = value

    def __reduce__(self):
        return str, ("reference",)


def fetched(refs, timeout=None):
    """In the place of `ray.get`."""
    if isinstance(refs, list):
        return [fetched(ref) for ref in refs]
    return refs.value if isinstance(refs, Put) else refs.result() if isinstance(refs, Ref) else refs


class Engine:
    """Stands for an engine's actor: what it is sent has ended when it is asked. Every second group has equal rewards."""

    def __init__(self, meter: Meter, response: dict, numbers) -> None:
        self.generate_responses = SimpleNamespace(remote=self._generate)
        self.get_num_unfinished_requests = SimpleNamespace(remote=self._count)
        self.__ray_call__ = self.set_tokenizer = SimpleNamespace(remote=lambda *_, **__: None)
        self._meter, self._response, self._numbers, self._ended = meter, response, numbers, []

    def _count(self) -> int:
        self._meter.send(None)
        return 0

    def _generate(self, prompt, *args, num_samples=1, **kwargs) -> Ref:
        self._meter.send((prompt, args, kwargs))
        with self._meter.part("stopped"):
            if isinstance(prompt, str):
                number = next(self._numbers)
                return Ref([self._answer(number, place) for place in range(num_samples)])
            if hasattr(prompt, "shares"):
                self._ended += [(share.number, place) for share in prompt.shares for place in share.places]
                return Ref([None])
            from openrlhf_sagc.decisions.records import Ended
            from openrlhf_sagc.engine.rollouts import MOST_COLLECTED

            ended, self._ended = self._ended[:MOST_COLLECTED], self._ended[MOST_COLLECTED:]
            return Ref([[Ended(*rollout, self._answer(*rollout)) for rollout in ended]])

    def _answer(self, number: int, place: int) -> dict:
        reward = float(place % 2) if number % 2 else 1.0
        own = {name: value.copy() for name, value in self._response.items() if hasattr(value, "copy")}
        return {**self._response, **own, "reward": reward, "scores": reward}


class Prompts:
    """An endless data set."""

    def __init__(self) -> None:
        self.sampler = mock.Mock()

    def __len__(self) -> int:
        return 10**9

    def __iter__(self):
        for number in itertools.count():
            yield [""], [f"{number:08}" * 100], ["label"], [None]


def arguments_of(rollouts: int, tokens: int) -> SimpleNamespace:
    """OpenRLHF's arguments and the package's, as far as the driver reads them."""
    from openrlhf.utils.config import hierarchize

    from openrlhf_sagc.arguments import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    settings = {"algo.advantage.estimator": "group_norm", "algo.advantage.is_correction_level": "off"}
    settings |= {"algo.advantage.gamma": 1.0, "algo.advantage.lambd": 1.0, "algo.advantage.no_std_norm": False}
    settings |= {"algo.kl.init_coef": 0.0, "algo.kl.use_loss": False, "algo.kl.unbiased_gradient": False}
    settings |= {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (0, 1)}
    settings |= {"rollout.batch_size": rollouts // SIZE, "rollout.n_samples_per_prompt": SIZE}
    settings |= {"rollout.max_new_tokens": tokens, "rollout.micro_batch_size": 8, "rollout.sagc.enable": True}
    settings |= {"rollout.sagc.group_sizes": [SIZE], "rollout.vllm_generate_batch_size": None}
    settings |= {"reward.clip_range": (-10, 10), "reward.overlong_buffer_len": None}
    settings |= {"reward.stop_properly_penalty_coef": None, "reward.remote_url": ["reward.py"]}
    settings |= {"train.batch_size": rollouts, "train.num_episodes": 1, "train.max_epochs": 1, "train.seed": 0}
    settings |= {"train.async_enable": False, "train.partial_rollout_enable": False, "train.agent_func_path": None}
    settings |= {"train.dynamic_batch_enable": False, "train.enable_ema": False, "train.colocate_all": False}
    settings |= {"train.colocate_actor_ref": False, "train.micro_batch_size": 8}
    settings |= {"actor.num_nodes": 1, "actor.num_gpus_per_node": 8, "actor.aux_loss_coef": 0.0}
    settings |= {"actor.loss_agg_mode": "token-mean", "actor.policy_loss_type": "ppo", "critic.freezing_steps": -1}
    settings |= {"ds.ring_attn_size": 1, "ds.tensor_parallel_size": 1, "ds.packing_samples": False, "ds.zero_stage": 2}
    settings |= {"data.max_len": PROMPT_TOKENS + tokens, "vllm.enable_sleep": False, "ckpt.save_steps": math.inf}
    args = hierarchize(argparse.Namespace(**vars(parser.parse_args([])) | settings))
    args.vllm.engine_args = {}
    return args


def parts_of(name: str, rollouts: int, engines: int, tokens: int) -> dict[str, float]:
    """CPU seconds of a step's parts in this process, whose OpenRLHF is that of the tree `name`."""
    import ray
    import torch
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    args, meter = arguments_of(rollouts, tokens), Meter()
    strategy, ours = SimpleNamespace(args=args), name == "ours"
    texts = np.random.default_rng(0).integers(0, VOCABULARY, PROMPT_TOKENS + tokens).tolist()
    response = {"observation_tokens": texts, "action_ranges": [(PROMPT_TOKENS, len(texts))], "truncated": False}
    response |= {"prompt": "prompt", "label": "label", "images": None, "rollout_log_probs": None, "extra_logs": {}}
    generator_cls, maker_cls = SamplesGenerator, RemoteExperienceMaker
    if ours:
        from openrlhf_sagc.decisions.records import ROLLOUT, Rollout
        from openrlhf_sagc.driver.experience import GroupExperienceMaker
        from openrlhf_sagc.driver.rollout import StragglerAwareSamplesGenerator
        from openrlhf_sagc.driver.samples import sample_of
        from openrlhf_sagc.driver.trainers import collect_less_garbage
        from openrlhf_sagc.engine.responses import plain_response

        collect_less_garbage()  # as in the trainer's process
        generator_cls, maker_cls = StragglerAwareSamplesGenerator, GroupExperienceMaker
        request = {**response, "max_length": len(texts), "sampling_params": SimpleNamespace(logprobs=None)}
        response = plain_response(response, request, who="a stub", vocabulary=VOCABULARY)
        response[ROLLOUT] = Rollout(tokens, 10.0, 0.5, True, False, None)

    def on_actors(method, *args, **kwargs):
        for _ in range(args_ranks):
            meter.send((args, kwargs))
        return [False] * args_ranks

    def to_actors(method_name, **kwargs):
        for rank in range(args_ranks):
            bounds = [len(next(iter(kwargs.values()))) * place // args_ranks for place in (rank, rank + 1)]
            meter.send({name: values[slice(*bounds)] for name, values in kwargs.items()})
        return [[torch.zeros(mask.shape)] for mask in kwargs.get("action_mask", [])]

    args_ranks, numbers = args.actor.num_gpus_per_node, itertools.count()
    ranks = {"_actor_handlers": [None] * args_ranks, "duplicate_actors": 1}
    actors = SimpleNamespace(async_run_method=on_actors, async_run_method_batch=to_actors, **ranks)
    with (
        mock.patch.object(ray, "get", meter.timed("answers", fetched)),
        mock.patch.object(ray, "put", Put),
        mock.patch.object(ray, "wait", lambda refs, **_: (refs[:1], refs[1:])),
        mock.patch.object(Ref, "result", meter.timed("answers", Ref.result)),
        meter.part("decisions"),
    ):
        stubs = [Engine(meter, response, numbers) for _ in range(engines)]
        generator = generator_cls(strategy, Prompts(), None, None, stubs)
        process = meter.timed("samples", SamplesGenerator._process_response_into_experience)
        dispatch = meter.timed("dispatch", SamplesGenerator._dispatch_prompts_to_vllm)
        if ours:
            generator.engines.dispatch = meter.timed("dispatch", generator.engines.dispatch)
        with (
            mock.patch.object(SamplesGenerator, "_process_response_into_experience", process),
            ours
            and mock.patch("openrlhf_sagc.driver.rollout.sample_of", meter.timed("samples", sample_of))
            or nullcontext(),
            mock.patch.object(SamplesGenerator, "_dispatch_prompts_to_vllm", dispatch),
        ):
            meter.seconds.clear()
            samples = generator.generate_samples(max_len=args.data.max_len, max_new_tokens=tokens)[0]
        assert len(samples) == rollouts
        tokenizer, kl_ctl = SimpleNamespace(pad_token_id=0), SimpleNamespace(value=0.0)
        maker = maker_cls(actors, None, None, None, kl_ctl, strategy, tokenizer)
        with meter.part("experience"):
            experiences = maker.make_experience_batch(samples)
        with meter.part("handover"):
            actors.async_run_method_batch("append", experience=experiences)
    del meter.seconds["stopped"]
    return dict(meter.seconds)


def measured_apart(name: str, rollouts: int, engines: int, tokens: int) -> dict[str, float]:
    """What `parts_of` finds in a process of its own."""
    paths = os.pathsep.join(map(str, (ROOT / "eval", ROOT, ROOT / "build" / TREES[name])))
    environment = {**os.environ, "PYTHONPATH": paths, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    code = f"from studies.overhead.driver import *; print(json.dumps(parts_of({name!r}, {rollouts}, {engines}, {tokens})))"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if result.returncode:
        raise ValueError(f"{name} with {rollouts} rollouts: {result.stderr.strip()[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def served(sizes: Sequence[int], seconds: list[float]) -> float:
    """Rollouts whose step costs BUDGET, by the power law through the two nearest sizes."""
    (_, a), (_, b) = sorted(sorted((abs(math.log(s / BUDGET)), i) for i, s in enumerate(seconds))[:2])
    a, b = sorted((a, b))
    exponent = math.log(seconds[b] / seconds[a]) / math.log(sizes[b] / sizes[a])
    return sizes[b] * (BUDGET / seconds[b]) ** (1 / exponent)


def exponent_of(sizes: Sequence[int], seconds: list[float]) -> float:
    """The slope of a line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure(engines: Sequence[int] = (64, 1024), tokens: int = 4096) -> pd.DataFrame:
    """A row for each part of each driver: its seconds by rollouts, its exponent, and what the whole serves within BUDGET."""
    rows = []
    for count, (name, sizes) in itertools.product(engines, ROLLOUTS.items()):
        parts = pd.DataFrame([measured_apart(name, size, count, tokens) for size in sizes]).fillna(0.0)
        parts["all"] = parts.sum(axis=1)
        for part, seconds in parts.items():
            row = {"engines": count, "driver": name, "part": part}
            row |= {f"seconds_{size}": second for size, second in zip(sizes, seconds)}
            row["exponent"] = exponent_of(sizes, seconds.tolist()) if seconds.min() > 0 else math.nan
            row["served"] = served(sizes, seconds.tolist()) if part == "all" else math.nan
            rows.append(row)
    return pd.DataFrame(rows)

"""The scheduler without Ray or vLLM: engines that decode a token of every rollout per tick of a clock.

And, without Ray, the way of experiences from the driver to a micro-batch in an actor, and the start of train_ppo_ray.
"""

import argparse
import contextlib
import functools
import runpy
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, settings
from openrlhf.trainer.ppo_utils.experience import (
    balance_experiences,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.utils.agent import SingleTurnAgentExecutor

import openrlhf_sagc.experience as experience
import openrlhf_sagc.rollout as rollout
from openrlhf_sagc.actor import SAMPLE
from openrlhf_sagc.rollout import StragglerAwareSamplesGenerator

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines pause
settings.load_profile("untimed")
PROMPT_TOKENS = 3
UNPATCHED = Path(__file__).parents[2] / "build/base/openrlhf/cli/train_ppo_ray.py"  # which holds the parser


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
    """What stands for the Ray reference of a group."""

    def __init__(self, prompt, answers, start, keep):
        self.prompt, self.answers, self.start = prompt, answers, start
        rewarded = sorted(tokens for tokens, _, *rest in answers if not any(rest[1:]))
        every = max(tokens for tokens, *_ in answers)
        self.end = start + (rewarded[keep - 1] if keep and len(rewarded) >= keep else every)


class FakeRay:
    """`ray.wait` moves the clock to the end of the next group; `ray.get` of one that still runs finds it stopped."""

    def __init__(self):
        self.clock = 0
        self.calls = []  # of methods of the engines
        self.together = False  # all groups end at once

    def wait(self, pending, num_returns, timeout):
        if num_returns > 1 or timeout < 10:  # after a stop
            return pending, []
        first = min(pending, key=lambda ref: (ref.end, pending.index(ref)))
        self.clock = max(self.clock, max(ref.end for ref in pending) if self.together else first.end)
        return [first], [ref for ref in pending if ref is not first]

    def get(self, refs):
        return self.respond(refs) if isinstance(refs, Dispatched) else refs

    def respond(self, ref):
        return [self.response(ref, *answer) for answer in ref.answers]

    def response(self, ref, tokens, score, seconds=None, failure=None):
        ticks = min(tokens, self.clock - ref.start, ref.end - ref.start)
        fields = {"prompt": ref.prompt, "label": "", "images": None, "failure": failure}
        fields |= {
            "tokens": ticks,
            "seconds": (ticks if seconds is None else seconds) + 0.5,
            "queue_seconds": 0.5,
            "stopped": ticks < tokens,
        }
        if fields["stopped"]:
            return fields
        reward = None if failure else score
        ranges, sequence = [(PROMPT_TOKENS, PROMPT_TOKENS + tokens)], [1] * (PROMPT_TOKENS + tokens)
        fields |= {"observation_tokens": sequence, "action_ranges": ranges, "rollout_log_probs": None}
        return fields | {"reward": reward, "scores": reward, "truncated": False, "extra_logs": {}}


@pytest.fixture
def reward_file(tmp_path):
    """reward_file(body) -> executor with a reward function of this body; its module's names are in `reward_func`."""

    def make(body):
        path = tmp_path / "reward.py"
        text = "import time, threading, numpy, torch\nfree, calls = threading.Event(), []\n"
        path.write_text(text + f"def reward_func(queries, prompts, labels):\n    calls.append(labels)\n    {body}\n")
        executor = SingleTurnAgentExecutor(str(path))
        modules.append(executor.reward_func.__globals__)
        return executor

    modules = []
    yield make
    for module in modules:
        module["free"].set()


@pytest.fixture
def make_generator(monkeypatch):
    """make_generator(prompts, respond, filtering, **flags), 16 samples a step: 4 prompts at size 4, 2 at size 8.

    respond(prompt, size) -> [(tokens, score[, seconds[, failure]]), ...]. Flags are those of --rollout.sagc, and of
    others with two underscores for the dot.
    """

    ray = FakeRay()
    monkeypatch.setattr(rollout.ray, "wait", ray.wait)
    monkeypatch.setattr(rollout.ray, "get", ray.get)
    monkeypatch.setattr(rollout, "batch_vllm_engine_call", lambda engines, method: ray.calls.append(method))

    def make(prompts, respond=lambda prompt, size: [(10, 1.0)] * size, filtering=False, engines=0, **flags):
        sagc = dict(
            enable=True,
            group_sizes=[4, 8],
            hold="samples",
            signal="tokens",
            straggler_ratio=2.5,
            max_straggler_rate=0.2,
        )
        args = SimpleNamespace(
            rollout=SimpleNamespace(
                batch_size=4,
                n_samples_per_prompt=4,
                max_new_tokens=100,
                length_aware_dispatch=False,
                sagc=SimpleNamespace(**sagc, tradeoff=2.0, discount=0.98),
                tail_batching=SimpleNamespace(enable=False, prompt_ratio=1.25, response_ratio=1.25),
            ),
            train=SimpleNamespace(
                batch_size=8, num_episodes=2, max_epochs=1, seed=1, agent_func_path=None, partial_rollout_enable=False
            ),
            algo=SimpleNamespace(
                dynamic_filtering_enable=filtering,
                dynamic_filtering_range=(0, 1),
                dynamic_filtering_tolerance=1e-6,
                dynamic_filtering_max_gen_batches=10,
                dynamic_filtering_at_cap="fail",
                dynamic_filtering_surplus="discard",
            ),
            reward=SimpleNamespace(remote_url=["reward.py"], timeout=9.0, retries=2, max_failure_share=0.1),
            actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=1),
            ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
            vllm=SimpleNamespace(enable_sleep=False),
            data=SimpleNamespace(max_len=200),
        )
        for name, value in flags.items():
            *sections, flag = name.split("__")
            setattr(reduce(getattr, sections or ["rollout", "sagc"], args), flag, value)
        engines = [SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda *_, **__: None))] * engines
        generator = StragglerAwareSamplesGenerator(SimpleNamespace(args=args), Prompts(prompts), None, None, engines)
        generator.ray, generator.drawn, generator.dispatched_to = ray, [], []

        def dispatch(prompts, labels, *, images, n_samples_per_prompt):
            generator.drawn += map(int, prompts)
            generator.dispatched_to.append(prompts)
            answers = (respond(int(prompt), n_samples_per_prompt) for prompt in prompts)
            return [Dispatched(p, answer, ray.clock, generator._keep) for p, answer in zip(prompts, answers)]

        for dispatching in [generator, *generator._single_engines]:
            dispatching._dispatch_prompts_to_vllm = dispatch
        return generator

    return make


class Trainer:
    """Of a policy's actor."""

    def training_step(self, experience):
        return experience


@pytest.fixture
def train_batches(monkeypatch):
    """train_batches(maker, experiences, micro_batch) -> the micro-batches that actors train on, with advantages.

    Driver and actors as OpenRLHF has them: experiences are made, balanced over two actors as with dynamic batches if
    `balanced`, cut into samples, shuffled and put together anew. Each batch has its samples' numbers in `index`.
    """
    monkeypatch.setattr(experience.ray, "get", lambda results: results)

    def run(maker, experiences, micro_batch, balanced=False):
        trainer = Trainer()
        model_actor = SimpleNamespace(trainer=trainer, max_steps=0, actor_scheduler=SimpleNamespace(last_epoch=0))
        args = SimpleNamespace(
            rollout=SimpleNamespace(batch_size=4, n_samples_per_prompt=8),
            train=SimpleNamespace(dynamic_batch_enable=True, batch_size=32),
        )
        model_actor.strategy = SimpleNamespace(args=args, train_batch_size=32)
        call = SimpleNamespace(async_run_method=lambda name, function, *args: function(model_actor, *args))
        maker.actor_model_group, maker._progress = call, 0.0
        for batch in experiences:
            batch.sequences = batch.attention_mask = torch.ones(len(batch.action_mask), batch.action_mask.size(1) + 1)
            batch.total_length = batch.action_mask.sum(dim=1)
        made = maker.compute_advantages_and_returns(experiences)
        if balanced:
            two = SimpleNamespace(actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2))
            two.ds = SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1)
            made = balance_experiences(made, two)
        samples = [sample for batch in made for sample in remove_padding_in_sequences(split_experience_batch(batch))]
        samples = [samples[i] for i in torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))]
        batches = []
        for start in range(0, len(samples), micro_batch):
            batch = make_experience_batch(samples[start : start + micro_batch])
            batch.index = torch.stack(batch.info[SAMPLE]).tolist()
            batches.append(trainer.training_step(batch))
        return batches

    return run


@pytest.fixture(scope="session")
def start_trainer():
    """start_trainer(flags, unpatched=False) -> args, models, ref, cls: the trainer that a run starts, and of what.

    Through `python -m openrlhf_sagc`, or the script of unpatched OpenRLHF.

    Flags have to be written out: argparse alone takes the beginning of a name as well.
    """
    # Before anything is patched, which a first import would keep.
    import openrlhf.cli.train_ppo_ray  # noqa: F401

    import openrlhf_sagc.trainers  # noqa: F401

    sources = {
        "placement_group": "ray.util.placement_group",
        "get_strategy": "openrlhf.utils",
        "create_vllm_engines": "openrlhf.trainer.ray",
        "RayActorGroup": "openrlhf.trainer.ray.launcher",
    }
    whole_names = functools.partialmethod(argparse.ArgumentParser.__init__, allow_abbrev=False)

    def start(flags, unpatched=False):
        groups, trainer, strategy = mock.Mock(), mock.Mock(), SimpleNamespace(print=mock.Mock())
        trainer.remote.side_effect = InterruptedError
        make_actor = mock.Mock(return_value=trainer)
        stand_ins = dict.fromkeys(sources, mock.Mock())
        stand_ins["get_strategy"] = lambda args: vars(strategy).update(args=args) or strategy
        stand_ins["RayActorGroup"] = groups
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch("sys.argv", ["train_ppo_ray", *flags]))
            stack.enter_context(mock.patch.object(argparse.ArgumentParser, "__init__", whole_names))
            stack.enter_context(
                mock.patch.multiple("ray", is_initialized=mock.DEFAULT, get=mock.DEFAULT, remote=make_actor)
            )
            for name, source in sources.items():  # where the script takes them from, or has them
                owner = source if unpatched else "openrlhf.cli.train_ppo_ray"
                stack.enter_context(mock.patch(f"{owner}.{name}", stand_ins[name]))
            if unpatched:
                stack.enter_context(mock.patch("openrlhf.trainer.ppo_trainer.PPOTrainer", trainer))
                stack.enter_context(mock.patch("openrlhf.trainer.ppo_trainer_async.PPOTrainerAsync", trainer))
            stack.enter_context(pytest.raises(InterruptedError))
            if unpatched:
                runpy.run_path(str(UNPATCHED), run_name="__main__")
            else:
                runpy.run_module("openrlhf_sagc", run_name="__main__")
        models = [call.args[2] for call in groups.call_args_list]
        cls = None if unpatched else make_actor.call_args.args[0]
        return SimpleNamespace(args=strategy.args, models=models, ref=trainer.remote.call_args.args[5], cls=cls)

    return start

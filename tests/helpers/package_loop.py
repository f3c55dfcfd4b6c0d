"""`ppo_loop.py` with this package's training: its experience maker and what it does in the policy's actors; run as a script.

Rollouts are made up as there, in groups of n_samples_per_prompt. With `train.stream` not off, each step is trained in random buckets,
others for another value. A case is trained like one of `ppo_loop.py`; its flags may
have this package's `train.*` as well. Its result has every weight, the sum of the optimizer steps' gradients, each times what
its step counts as, where the learning rate is 0, and the optimizer's moments of all ranks. Adam's epsilon is that of
`tolerances.py`.

Where a rollout has two optimizer steps, the first one trains the first half of each group, and not a random half of the
samples. Two ranks have every other sample there. So cases can be compared.
"""

import contextlib
import math
import pickle
import random
from types import SimpleNamespace
from unittest import mock

import numpy as np
import ppo_loop  # first: it stands in for Ray, vLLM and the data sets

import deepspeed  # isort: skip
import torch  # isort: skip
import torch.distributed as dist  # isort: skip
from deepspeed.accelerator import get_accelerator  # isort: skip
from made_up_prompts import is_lost  # isort: skip
from openrlhf.trainer import ppo_trainer  # isort: skip
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # isort: skip

from openrlhf_sagc.training import streamed_training, training  # isort: skip
from openrlhf_sagc.training.streamed_training import deal_at_random  # isort: skip
from openrlhf_sagc.training.rollout_rewards import SAMPLE  # isort: skip
from openrlhf_sagc.training.training import StepShare  # isort: skip
from openrlhf_sagc.decisions.records import Group, Prompt  # isort: skip
from openrlhf_sagc.decisions.token_weights import PlainSteps  # isort: skip
from openrlhf_sagc.driver import checkpointing, experience  # isort: skip
from openrlhf_sagc.driver.experience import stamped  # isort: skip
from openrlhf_sagc.driver.samples import sample_of  # isort: skip
from openrlhf_sagc.driver.streaming import StepSamples, Stream  # isort: skip
from openrlhf_sagc.driver.trainers import GroupTraining  # isort: skip
from tolerances import EPSILON  # isort: skip

OWN = ("train.old_log_probs", "train.micro_batches", "train.stream")
PLAIN_LENGTH = "train.plain_length"  # a flag of this script alone: mean tokens by which steps are weighed
PADDED = "train.padded"  # and another: dynamic batches without the packing that they switch on
LOST = "train.lost"  # and this: failed rewards cost some samples
RAGGED = "train.ragged"  # another one: some samples have logs, with names of their own and of OpenRLHF's


SIZE = 4  # of every group


def half_of(sample):
    """Which half of its group a sample is in."""
    return int(sample.info[SAMPLE]) % SIZE * 2 // SIZE


def left_of(samples):
    """Those of a group that have a reward."""
    return [sample for number, sample in enumerate(samples) if not is_lost(sample.prompt, number)]


def deal_in_turns(lengths_N, ranks):
    return sorted(range(len(lengths_N)), key=lambda place: place % ranks)


def deal_halves(samples, sizes):
    if len(sizes) != 2:
        return deal_at_random(samples, sizes)
    return [[sample for sample in samples if half_of(sample) == half] for half in (0, 1)]


class HalvesSampler(torch.utils.data.Sampler):
    """A random order, but all first halves come first."""

    def __init__(self, buffer):
        self.items = buffer.items

    def __iter__(self):
        order = np.random.default_rng(0).permutation(len(self.items)).tolist()
        return iter(sorted(order, key=lambda place: half_of(self.items[place])))


def own_sample(generator, response, max_len=2048, **generate_kwargs):
    """In the place of OpenRLHF's sample: this package's."""
    arrays = {"observation_tokens": np.array(response["observation_tokens"], np.int32)}
    if response["rollout_log_probs"] is not None:
        arrays["rollout_log_probs"] = np.array(response["rollout_log_probs"], np.float32)
    return sample_of({"extra_logs": {}, **response, **arrays}, max_len)


class Trainer(GroupTraining, ppo_trainer.PPOTrainer):
    """Trains as the package does on OpenRLHF's own rollouts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.trained = 0  # prompts
        theirs, size = self.samples_generator.generate_samples, self.args.rollout.n_samples_per_prompt

        def generate(**generate_kwargs):
            samples, *rest = theirs(**generate_kwargs)
            progress = self.trained / len(self.prompts_dataloader)
            groups = [
                Group(
                    number,
                    0,
                    Prompt("", "", None, 1),
                    size,
                    size,
                    samples=samples[number * size : (number + 1) * size],
                )
                for number in range(len(samples) // size)
            ]
            share = StepShare(progress, len(samples))
            if self.args.train.lost:
                groups = [group._replace(samples=left_of(group.samples)) for group in groups]
                share.lost = len(samples) - sum(len(group.samples) for group in groups)
            self.trained += len(groups)
            length = self.args.train.plain_length
            plain = PlainSteps(length, math.inf) if length else None
            if self.args.train.stream == "off" or not groups:
                share.plain = plain
                return StepSamples(stamped(groups, share), {}), *rest
            stream = Stream(self.experience_maker, self.kl_ctl)
            stream.begin(SimpleNamespace(num_groups=len(groups), group_size=size), progress)
            draw = random.Random(
                f"{self.args.train.stream} {self.trained}"
            )  # another partition in every case and step
            draw.shuffle(groups)
            first = 0
            while first < len(groups):
                count = draw.randint(1, len(groups))
                stream.send(groups[first : first + count])
                first += count
            stream.share.plain = plain
            samples = stamped(stream.rest(groups), stream.share)
            count = sum(len(group.samples) for group in groups)
            return StepSamples(samples, {"streamed": 1 - len(samples) / count}, stream), *rest

        self.samples_generator.generate_samples = generate

    def init_checkpoint_states(self):
        """With the dataloader's state as OpenRLHF's own prompts take it."""
        states = super().init_checkpoint_states()
        return {**states, **states["data_loader_state_dict"]} if states["global_step"] else states


class ModelActors(ppo_loop.ModelActors):
    """With Ray's way to run a function inside an actor; what comes of it is this rank's."""

    def async_run_method_batch(self, method_name, **kwargs):
        return super().async_run_method_batch(method_name, **pickle.loads(pickle.dumps(kwargs)))  # as Ray sends it

    def handle(self, mine):
        theirs = super().handle(mine)
        run = SimpleNamespace(remote=lambda function, *args: function(self.model_actor, *args) if mine else None)
        type(theirs).__ray_call__ = run
        return theirs


def roll_out(prompt, number, rewards):
    """The response of `ppo_loop.py`, with logs in two of three samples."""
    response = made_up(prompt, number, rewards)
    logs = [{}, {"solved": 1.0}, {"kl": 9.0, "timing/tool": 9.0, **{f"{prompt} {i}": 1.0 for i in range(9)}}]
    return {**response, "extra_logs": logs[number % 3]}


def parse(flags):
    ppo_loop.roll_out = roll_out if flags.get(RAGGED) else made_up
    own = (*OWN, PLAIN_LENGTH, PADDED, RAGGED, LOST)
    args = theirs({name: value for name, value in flags.items() if name not in own})
    args.train.plain_length, args.train.lost = flags.get(PLAIN_LENGTH), flags.get(LOST)
    args.data.described = {}
    if flags.get(PADDED):
        args.ds.packing_samples = False
    for name in OWN:
        section, key = name.split(".")
        setattr(getattr(args, section), key, flags[name])
    two_steps = args.rollout.batch_size * args.rollout.n_samples_per_prompt == 2 * args.train.batch_size
    experience.deal = deal_in_turns if two_steps else deal
    return args


@contextlib.contextmanager
def recorded(engine, count):
    """`as_plain_steps`, which adds up the gradients as the optimizer sees them, where weights stay as they are."""
    engine.counts = [*getattr(engine, "counts", []), count]
    if engine.optimizer.param_groups[0]["lr"] or "betas" not in engine.optimizer.param_groups[0]:  # the latter is Muon
        with as_plain_steps(engine, count):
            yield
        return
    states = engine.optimizer.optimizer.state
    for state in states.values():
        if "exp_avg" in state:
            state["exp_avg"].zero_()
    with as_plain_steps(engine, count):
        decay = engine.optimizer.param_groups[0]["betas"][0]
        yield
    means = [state["exp_avg"].double().flatten() for state in states.values() if "exp_avg" in state]
    engine.update = getattr(engine, "update", 0) + count * torch.cat(means) / (1 - decay)


def values_of(parameters):
    """Of this rank's parts, where ZeRO 3 has cut them."""
    held = [parameter.data if parameter.numel() else parameter.ds_tensor.data for parameter in parameters]
    return [value for data in held for value in data.flatten().tolist()]


def of_all_ranks(values):
    """Of every rank, whose shares of the optimizer's state are different weights'."""
    shares = [None] * dist.get_world_size()
    dist.all_gather_object(shares, values)
    return sum(shares, [])


def describe(engine, args):
    parameters = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parameters, enabled=args.ds.zero_stage == 3):
        weights = values_of(parameters)
    states = [state for state in engine.optimizer.optimizer.state.values() if "exp_avg" in state]
    moments = {
        name: of_all_ranks([v for s in states for v in s[name].flatten().tolist()])
        for name in ("exp_avg", "exp_avg_sq")
    }
    return {
        "weights": weights,
        **moments,
        "update": of_all_ranks(torch.as_tensor(getattr(engine, "update", [])).tolist()),
        "counts": engine.counts,
        "optimizer_steps": engine.global_steps,
        "micro_batches": engine.micro_steps,
        "loss_scale": engine.optimizer.loss_scale,  # of the next step, and in a checkpoint
    }


if __name__ == "__main__":
    made_up = ppo_loop.roll_out
    theirs, deal, as_plain_steps = ppo_loop.parse, experience.deal, training.as_plain_steps
    with (
        mock.patch.dict(ppo_loop.FLAGS, {"actor.adam.eps": EPSILON}),
        # Muon iterates in float16 where a processor has it.
        mock.patch.object(type(get_accelerator()), "is_fp16_supported", lambda _: False),
        mock.patch.object(ppo_trainer, "PPOTrainer", Trainer),
        mock.patch.object(ppo_loop, "ModelActors", ModelActors),
        mock.patch.object(ppo_loop, "parse", parse),
        mock.patch.object(ppo_loop, "describe", describe),
        mock.patch.object(ppo_loop, "digest", values_of),  # of the moving average
        mock.patch.object(training, "as_plain_steps", recorded),
        mock.patch.object(checkpointing, "step_seconds", lambda status: {}),  # of steps that nobody times
        mock.patch.object(SamplesGenerator, "_process_response_into_experience", own_sample),
        mock.patch.object(streamed_training, "deal_at_random", deal_halves),
        mock.patch.object(torch.utils.data, "RandomSampler", HalvesSampler),
    ):
        ppo_loop.main()

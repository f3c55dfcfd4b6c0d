"""Files with policies of one's own, and runs that go by them on fake engines."""

import io

import torch
from fake_engines import on_close

SIZES = '''
import random
from dataclasses import dataclass

import numpy as np
import torch

from openrlhf_sagc.controller import StragglerAwareGroupController


class Bandit:
    """Epsilon-greedy over the sizes; its arms are tensors, its size is one of numpy's."""

    def __init__(self, group_sizes, **settings):
        self.sizes, self.settings = group_sizes, settings
        self.random, self.arm = random.Random(0), 0
        self.value, self.count = torch.zeros(len(group_sizes)), torch.zeros(len(group_sizes))

    @property
    def group_size(self):
        return np.int64(self.sizes[self.arm])

    def observe(self, groups, **more):
        self.more = more
        self.count[self.arm] += 1
        full = np.mean([np.mean(group) / max(group) for group in groups])
        self.value[self.arm] += (full - self.value[self.arm]) / self.count[self.arm]
        best = self.random.random() < 0.5
        self.arm = int(self.value.argmax()) if best else self.random.randrange(len(self.sizes))

    def metrics(self):
        return {"best": self.value.max(), "arm": np.float32(self.arm)}

    def state_dict(self):
        arms = {"value": self.value, "count": self.count, "arm": np.int64(self.arm)}
        return {**arms, "random": self.random.getstate()}

    def load_state_dict(self, state):
        self.value, self.count, self.arm = state["value"], state["count"], state["arm"]
        self.random.setstate(state["random"])


class Capped(StragglerAwareGroupController):
    """Group control that never takes the largest size."""

    @property
    def group_size(self):
        return min(self._group_size, self.group_sizes[-2])


@dataclass
class Fixed:
    group_sizes: tuple
    group_size: object = 8

    def observe(self, groups): ...
    def metrics(self): return {}
    def state_dict(self): return {}
    def load_state_dict(self, state): ...


class Restless(Fixed):
    """Another size at every look at it."""

    def __init__(self, group_sizes):
        self.group_sizes, self.looks = group_sizes, 0

    @property
    def group_size(self):
        self.looks += 1
        return self.group_sizes[self.looks % len(self.group_sizes)]

    @group_size.setter
    def group_size(self, size): ...


class Watches(Fixed):
    def observe(self, groups, running, frame_ends):
        self.seen = groups, running, frame_ends
'''


def written(folder, source=SIZES, name="sizes.py"):
    """The path of a module that has this source."""
    (folder / name).write_text(source)
    return str(folder / name)


def through_a_checkpoint(state):
    """As DeepSpeed saves it, and as a later run's --rollout.length_history reads it: without unpickling classes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def respond(prompt, size):
    return [(5 + (prompt * 37 + place * 11) % 60, float(place % 2)) for place in range(size)]


def metrics_of(generator, steps):
    sizes = []
    on_close(generator, lambda step: sizes.append(step.group_size))
    for _ in range(steps):
        generator.generate_samples()
    return sizes, generator.metrics

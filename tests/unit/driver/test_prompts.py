"""The dataloader as a source of prompts, on the engines of fake_engines.py."""

from functools import partial
from types import SimpleNamespace

import torch
from fake_engines import run_episode
from openrlhf.utils.deepspeed import DeepspeedStrategy
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from openrlhf_sagc.decisions.prompt_queue import PromptQueue
from openrlhf_sagc.driver.prompts import DataloaderPrompts, in_order


def row(numbers):
    """A batch of OpenRLHF's prompt dataset."""
    return [""], [str(numbers[0])], [""], [None]


def test_every_episode_has_an_order_of_its_own_that_follows_the_seed(make_generator):
    generator = make_generator(4)
    seeds = []
    for _ in range(3):
        run_episode(generator)
        seeds.append(generator.prompts_dataloader.sampler.generator.initial_seed())
    assert seeds == [1, 2, 3]


def test_a_run_that_is_resumed_at_an_episodes_end_has_the_next_ones_order():
    """The loader's saved state has a generator too, which must not replace the next episode's seed."""

    def make():
        generator = torch.Generator()
        sampler = RandomSampler(range(50), generator=generator)
        loader = StatefulDataLoader(range(50), 1, sampler=sampler, collate_fn=row)
        return PromptQueue(DataloaderPrompts(loader, seed=5)), loader

    def draw(queue, count):
        return [prompt.text for prompt in queue.draw(count, max_put_back=0, next_episode_allowed=True)]

    straight, _ = make()
    killed, loader = make()
    assert draw(straight, 50) == draw(killed, 50)
    killed._is_drawing = False  # as after a step that has asked for more
    states = loader.state_dict(), killed.state_dict([])
    resumed, loader = make()
    loader.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    assert draw(resumed, 20) == draw(straight, 20)


def test_with_keep_order_every_episode_has_the_order_of_the_data_resumed_or_not():
    """OpenRLHF's own dataloader, without its random sampler."""
    strategy = SimpleNamespace(seed=5)
    strategy.setup_dataloader = partial(DeepspeedStrategy.setup_dataloader, strategy)
    theirs = strategy.setup_dataloader(list(range(50)), 1, False, True, row)

    def make():
        loader = in_order(strategy, theirs, 0)
        return PromptQueue(DataloaderPrompts(loader, seed=5)), loader

    def draw(queue, count):
        prompts = queue.draw(count, max_put_back=0, next_episode_allowed=True)
        queue.close_episode([])
        return [int(prompt.text) for prompt in prompts]

    queue, loader = make()
    assert draw(queue, 30) == list(range(30))
    states = loader.state_dict(), queue.state_dict([])
    assert draw(queue, 20) + draw(queue, 10) == [*range(30, 50), *range(10)]
    resumed, loader = make()
    loader.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    assert draw(resumed, 20) + draw(resumed, 10) == [*range(30, 50), *range(10)]
    assert [int(texts[0]) for _, texts, *_ in theirs] != list(range(50))

"""The dataloader as a source of prompts, on the engines of fake_engines.py."""

from fake_engines import run_episode


def test_every_episode_has_an_order_of_its_own_that_follows_the_seed(make_generator):
    generator = make_generator(4)
    seeds = []
    for _ in range(3):
        run_episode(generator)
        seeds.append(generator.prompts_dataloader.generator.initial_seed())
    assert seeds == [1, 2, 3]

"""Patch 5: OpenRLHF's own samples generator in a checkpoint, with rollouts that no step has got yet."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from torchdata.stateful_dataloader import StatefulDataLoader

PROMPTS, GENERATED, BATCH = 10, 4, 2  # a call of vLLM answers four prompts, a step takes two


def make_generator(monkeypatch):
    args = SimpleNamespace(
        rollout=SimpleNamespace(batch_size=BATCH, n_samples_per_prompt=1, vllm_generate_batch_size=GENERATED),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
        vllm=SimpleNamespace(enable_sleep=False),
    )
    prompts = StatefulDataLoader(
        [([""], [str(i)], [""], [None]) for i in range(PROMPTS)],
        batch_size=1,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        collate_fn=lambda rows: rows[0],
    )
    generator = SamplesGenerator(SimpleNamespace(args=args), prompts, None, None, [])

    def answer(dataloader_iter, num_prompts, **_):
        prompts, _, _, exhausted = _collect_prompt_batch(dataloader_iter, num_prompts)
        return prompts, len(prompts), exhausted

    monkeypatch.setattr(generator, "_generate_vllm", answer)
    return generator


def episode(generator):
    steps = []
    while True:
        samples, _, _, exhausted = generator.generate_samples()
        steps += [samples] if samples else []
        if exhausted:
            return steps


@pytest.mark.parametrize("stop", range(1, 5))
def test_resumed_episode_trains_every_rollout_once(monkeypatch, stop):
    straight, killed, resumed = (make_generator(monkeypatch) for _ in range(3))
    expected = episode(straight)
    assert sorted(sum(expected, [])) == sorted(map(str, range(PROMPTS)))
    first = [killed.generate_samples()[0] for _ in range(stop)]
    resumed.prompts_dataloader.load_state_dict(killed.prompts_dataloader.state_dict())
    resumed.load_state_dict(killed.state_dict())
    assert first + episode(resumed) == expected


def test_resuming_after_an_episode_begins_the_next_one(monkeypatch):
    killed, resumed = make_generator(monkeypatch), make_generator(monkeypatch)
    episode(killed)
    resumed.prompts_dataloader.load_state_dict(killed.prompts_dataloader.state_dict())
    resumed.load_state_dict(killed.state_dict())
    assert sorted(sum(episode(resumed), [])) == sorted(map(str, range(PROMPTS)))

"""The scheduler places groups by their expected lengths, on the engines of fake_engines.py."""

import json
from collections import Counter


def test_the_scheduler_dispatches_by_expected_tokens(make_generator):
    """Two engines; a first episode shows that prompt 0 is longer than the seven others together."""
    lengths = lambda prompt: 95 if prompt == 0 else 10  # noqa: E731
    generator = make_generator(
        8,
        lambda prompt, size: [(lengths(prompt), 1.0)] * size,
        engines=2,
        group_sizes=[4],
        rollout__length_aware_dispatch=True,
        rollout__batch_size=8,
    )
    while not generator.generate_samples()[3]:
        state = json.loads(json.dumps(generator.state_dict()))
    generator.dispatched_to.clear()
    generator.generate_samples()
    engines = [Counter(map(int, prompts)) for prompts in generator.dispatched_to]
    assert [prompts[0] for prompts in engines] == [2, 2]  # the rollouts of prompt 0 are shared
    assert [prompts.total() for prompts in engines] == [16, 16]
    predictor = state["samples_generator"]["predictor"]
    assert predictor["prompts"].keys() == generator.planner.predictor.state_dict()["prompts"].keys()

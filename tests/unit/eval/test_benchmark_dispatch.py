"""The tokenizer that the benchmark of sending prompts makes up."""

import pickle

import benchmark_dispatch
import pytest


@pytest.mark.parametrize("tokens", [256, 3000])
def test_the_made_up_tokenizer_is_as_large_as_it_should_be_and_survives_its_way_through_ray(tokens):
    tokenizer = benchmark_dispatch.made_up_tokenizer(tokens)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert len(tokenizer) == len(again) == tokens
    assert again("a text")["input_ids"] == tokenizer("a text")["input_ids"] != []

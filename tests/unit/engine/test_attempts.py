"""Copies for one attempt; test_rollouts.py has them, and the prompts that are refused, in rollouts."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_sagc.engine.attempts import for_one_attempt, own_copy


@pytest.mark.parametrize("value", [{"a": [1]}, [[1]], {1}, np.ones(2), SimpleNamespace(stop=["x"])])
def test_what_can_change_is_copied(value):
    assert own_copy(value) is not value and str(own_copy(value)) == str(value)


@pytest.mark.parametrize("value", ["text", 7, None, (1, "a"), b"image", threading.Lock()])
def test_what_cannot_change_or_be_copied_is_itself(value):
    assert own_copy(value) is value


def test_a_tokenizer_is_copied_but_for_its_vocabulary():
    vocabulary = object()
    tokenizer = SimpleNamespace(_tokenizer=vocabulary, special=["<pad>"])
    for whole, inner in ((tokenizer, tokenizer), (SimpleNamespace(tokenizer=tokenizer), tokenizer)):
        copy = for_one_attempt({"hf_tokenizer": whole}, is_agent=True)["hf_tokenizer"]
        copied = getattr(copy, "tokenizer", copy)
        assert copied is not inner and copied.special is not inner.special and copied._tokenizer is vocabulary
    slow = {"hf_tokenizer": SimpleNamespace(vocabulary={"a": 1})}
    assert for_one_attempt(slow, is_agent=True)["hf_tokenizer"] is slow["hf_tokenizer"]

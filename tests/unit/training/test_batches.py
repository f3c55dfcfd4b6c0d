"""What of a batch is sent, and what an actor makes of it."""

import pickle
from types import SimpleNamespace

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences

from openrlhf_sagc.training.batches import BY_TOKEN, Batch, Tokens


def batch_of(tokens, log_probs=None, **fields):
    ranges = [[(0, 1)], [(0, 2), (3, 4)]]
    return Batch(Tokens([np.array(each, np.int32) for each in tokens], ranges, log_probs, pad_token_id=9), **fields)


def test_samples_are_padded_to_the_longest():
    log_probs = [np.array(each, np.float32) for each in ([-1], [-2, -3, -4, -5])]
    batch = batch_of([[1, 2], [3, 4, 5, 6, 7]], log_probs)
    assert batch.sequences.tolist() == [[1, 2, 9, 9, 9], [3, 4, 5, 6, 7]]
    assert batch.attention_mask.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert batch.action_mask.tolist() == [[1, 0, 0, 0], [1, 1, 0, 1]]
    assert batch.rollout_log_probs.tolist() == [[-1, 0, 0, 0], [-2, -3, -4, -5]]


def test_an_actor_gets_a_plain_experience_of_tensors_that_it_may_write_to():
    info = {"reward": torch.tensor([1.0, 0.5]), "score": torch.tensor([1.0, 0.5], dtype=torch.bfloat16)}
    vision = [None, {"pixels": torch.ones(2)}]
    batch = batch_of([[1, 2], [3, 4, 5, 6, 7]], rewards=torch.tensor([1.0, 0.5]), info=info, mm_train_inputs=vision)
    batch.kl = torch.ones(2, 4)  # as the experience maker sets fields
    buffers = []
    sent = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    store = [bytes(buffer.raw()) for buffer in buffers]  # which nobody may write to, as Ray's
    before = [bytes(bytearray(part)) for part in store]
    got = pickle.loads(sent, buffers=store)
    assert type(got) is Experience
    for name, value in vars(got).items():
        mine = getattr(batch, name)
        assert (value is None) == (mine is None)
        if isinstance(value, torch.Tensor):
            assert value.dtype == mine.dtype and torch.equal(value, mine)
            value += 1
    assert store == before
    assert {name: value.dtype for name, value in got.info.items()} == {n: v.dtype for n, v in info.items()}
    assert torch.equal(got.info["reward"], info["reward"]) and torch.equal(got.info["score"], info["score"])
    assert torch.equal(got.mm_train_inputs[1]["pixels"], vision[1]["pixels"])


def test_four_bytes_a_token_are_sent_whoever_has_read_the_tensors():
    length = 5000
    batch = batch_of([[1] * length, [2] * length], rewards=torch.tensor([1.0, 0.5]))
    for name in BY_TOKEN:
        getattr(batch, name)
    assert batch.sequences is batch.sequences  # made once
    assert len(pickle.dumps(batch)) < 2 * length * 4 + 2000


def test_dynamic_batches_are_balanced_as_of_plain_experiences():
    actor = SimpleNamespace(num_nodes=1, num_gpus_per_node=2)
    args = SimpleNamespace(actor=actor, ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1))
    lengths = torch.tensor([2.0, 5.0])
    batches = [batch_of([[first, 2], [3, 4, 5, 6, 7]], total_length=lengths, info={"kl": lengths}) for first in (1, 8)]
    made = [balance_experiences(given, args) for given in (batches, pickle.loads(pickle.dumps(batches)))]
    for ours, theirs in zip(*made, strict=True):
        for name in ("sequences", "attention_mask", "action_mask", "total_length"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))
        assert ours.sequences.shape == (2, 5)

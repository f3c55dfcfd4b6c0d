"""DAPO's token-level loss (arXiv 2503.14476, eq. 8) through DeepSpeed: one step of two ranks, uneven micro-batches."""

import json

import numpy as np
import pytest
from tolerances import rounding

pytestmark = pytest.mark.xdist_group("dapo ranks")  # one worker trains
LENGTHS = [[2, 30, 1, 5], [17, 3, 28, 4]]  # of the samples on each rank; the first two are one micro-batch
OPERATIONS = 16  # at most, between the inputs and the gradient of a token, each of which rounds
CASES = [  # --actor.loss_agg_mode, --train.dynamic_batch_enable, --ds.zero_stage
    ("token-mean", False, 2),
    ("token-mean", True, 3),
    ("seq-mean-token-mean", False, 2),
    ("token-mean", True, 2),  # OpenRLHF #1131
    ("token-mean", True, 1),
]
RANKS = """
import json, os
rank = int(os.fork() == 0)
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
from types import SimpleNamespace as N
import deepspeed, torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence
from torch.distributed.device_mesh import init_device_mesh
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf.utils.deepspeed import DeepspeedStrategy
from openrlhf.utils.loss_utils import get_loss_batch_info, iter_grad_accum_global_norm
from two_ranks import all_gather, all_reduce


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_probs = torch.nn.Parameter(torch.zeros(TOKENS))

    def forward(self, ids):
        return self.log_probs[ids]


def collate(samples):
    columns = zip(*((s.ids, s.old, s.advantages, s.action_mask) for s in samples))
    return [pad_sequence(column, batch_first=True) for column in columns]


deepspeed.init_distributed("gloo", init_method="file://" + STORE, rank=rank, world_size=2)
samples = []
for ids, old, advantage in SAMPLES[rank]:
    ids, old = torch.tensor(ids), torch.tensor(old)
    ones = torch.ones(len(ids))
    samples.append(N(ids=ids, old=old, advantages=advantage * ones, action_mask=ones, total_length=ones.sum().long()))
strategy = N(
    args=N(
        train=N(batch_size=8, max_tokens_per_gpu=32),
        rollout=N(batch_size=8, n_samples_per_prompt=1),
        ds=N(ring_attn_size=1, tensor_parallel_size=1),
    ),
    ds_device_mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)),
    all_reduce=all_reduce,
    all_gather=all_gather,
)


def gradient(mode, dynamic, stage):
    if dynamic:
        buffer = NaiveReplayBuffer(1, dynamic_batch=True)
        buffer.items = samples
        buffer.setup_dynamic_batch(strategy)
        batches = [collate([samples[i] for i in indices]) for indices in buffer.dynamic_indices]
        infos = [
            get_loss_batch_info(strategy, batch[3], replay_buffer=buffer, step=step, dynamic_batch=True)
            for step, batch in enumerate(batches)
        ]
        ends = buffer.dynamic_optimizer_step
    else:
        batches = [collate(samples[:2]), collate(samples[2:])]
        infos = [info for _, info in iter_grad_accum_global_norm(batches, strategy, 2, lambda batch: batch[3])]
        ends = [1, 1]
    assert len(batches) == 2
    policy = Policy()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1 if dynamic else 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=config)
    loss = PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.28, token_level_loss=mode == "token-mean")
    for (ids, old, advantages, mask), info, end in zip(batches, infos, ends):
        boundary = end if dynamic else None
        DeepspeedStrategy.backward(None, loss(engine(ids), old, advantages, mask, **info)[0], engine, None, boundary)
        if end:
            engine.step()
    with deepspeed.zero.GatheredParameters([policy.log_probs], enabled=stage == 3):
        return policy.log_probs.tolist()


gradients = [gradient(*case) for case in CASES]
dist.barrier()
if rank:
    os._exit(0)
os.wait()
print(json.dumps(gradients))
"""


def draw():
    """Samples of each rank as (token ids, old log-probabilities, advantage); every token has its own parameter, 0."""
    rng = np.random.default_rng(0)
    ids = iter(np.split(np.arange(sum(map(sum, LENGTHS))), np.cumsum(sum(LENGTHS, []))[:-1]))
    return [[(next(ids).tolist(), rng.normal(0, 0.2, n).tolist(), rng.normal()) for n in rank] for rank in LENGTHS]


def slopes(old, advantage):
    """Derivative of eq. 8's clipped term with respect to each token's log-probability, which is 0."""
    ratios = np.exp(-np.array(old))
    clipped = ratios > 1.28 if advantage > 0 else ratios < 0.8
    return np.where(clipped, 0.0, ratios * advantage)


@pytest.fixture(scope="module")
def gradients(tmp_path_factory, run_in_tree):
    constants = dict(SAMPLES=draw(), TOKENS=sum(map(sum, LENGTHS)), CASES=CASES)
    constants["STORE"] = str(tmp_path_factory.mktemp("dapo") / "store")
    script = "".join(f"{name} = {value!r}\n" for name, value in constants.items()) + RANKS
    output = run_in_tree("cpu-patched", "-c", script, env={"MASTER_ADDR": "localhost", "MASTER_PORT": "0"})
    return dict(zip(CASES, json.loads(output.splitlines()[-1])))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weight_of_a_token_in_the_gradient_of_a_step(gradients, case):
    """token-mean: 1 / tokens of the step; seq-mean-token-mean, GRPO's: 1 / (samples of the step x its tokens)."""
    samples = sum(draw(), [])
    by_token = np.concatenate([slopes(old, advantage) / sum(map(sum, LENGTHS)) for _, old, advantage in samples])
    by_sample = np.concatenate([slopes(old, advantage) / len(samples) / len(old) for _, old, advantage in samples])
    expected, other = (by_token, by_sample) if case[0] == "token-mean" else (by_sample, by_token)
    np.testing.assert_allclose(gradients[case], expected, rtol=rounding(OPERATIONS))
    assert np.abs(expected - other).max() > 0.1 * np.abs(expected).max()

"""How long the samples of each optimizer step are under dynamic batches, as OpenRLHF deals them to ranks and steps.

`python step_lengths.py SAMPLES RANKS STEPS LONGEST TOKENS_PER_GPU` prints as JSON, for a rollout whose responses are as long as
those of R1-Distill-Llama-8B on MATH-500 (half above 955 tokens, a tenth above 6,989), cut off at LONGEST:
- ratio: tokens of the largest optimizer step over those of the smallest,
- truncated: the share of each step's samples that is cut off,
- busy, busy_attention: the ranks' useful share of the time. In every micro-batch all ranks wait for the last one, so it is the
  mean over the ranks over their maximum, each summed over micro-batches. A micro-batch takes as long as it has tokens; for
  busy_attention also L / 60,000 for each token of a sample of L, about a 7B model's attention.
"""

import json
import sys
import threading
from types import SimpleNamespace

import numpy as np
import openrlhf.trainer.ppo_utils.replay_buffer as replay_buffer
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences, split_experience_batch

PROMPT = 100
torch.cuda.current_device = lambda: "cpu"  # a line of the unpatched plan, which the CPU series leaves


class Ranks:
    """Threads that are ranks: what torch.distributed and OpenRLHF's strategy gather between them."""

    SUM, MIN = "sum", "min"
    ReduceOp = SimpleNamespace(SUM=SUM, MIN=MIN)

    def __init__(self, size: int, args: SimpleNamespace) -> None:
        self._size, self._args = size, args
        self._barrier, self._sent = threading.Barrier(size), [None] * size

    def _gather(self, rank: int, data: torch.Tensor) -> torch.Tensor:
        self._sent[rank] = data.clone()
        self._barrier.wait()
        gathered = torch.stack(self._sent)
        self._barrier.wait()
        return gathered

    def get_world_size(self, group: int) -> int:
        return self._size

    def all_reduce(self, data: torch.Tensor, op: str, group: int) -> None:
        gathered = self._gather(group, data)
        data.copy_(gathered.sum(0) if op == self.SUM else gathered.amin(0))

    def strategy(self, rank: int) -> SimpleNamespace:
        def all_reduce(data, op):
            gathered = self._gather(rank, data)
            return gathered.sum(0) if op == "sum" else gathered.amax(0)

        return SimpleNamespace(
            args=self._args,
            ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: rank)},
            all_reduce=all_reduce,
            all_gather=lambda data: self._gather(rank, data).flatten(),
        )

    def plan(self, shares: list[list[Experience]]) -> list[replay_buffer.NaiveReplayBuffer]:
        """The buffer of each rank, with its samples dealt to optimizer steps and micro-batches."""
        replay_buffer.dist = self
        buffers = []
        for samples in shares:
            buffers.append(replay_buffer.NaiveReplayBuffer(1, dynamic_batch=True))
            buffers[-1].items = samples

        def run(rank):
            try:
                buffers[rank].setup_dynamic_batch(self.strategy(rank))
            except BaseException:
                self._barrier.abort()
                raise

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self._size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self._barrier.broken
        return buffers


def measure(samples: int, ranks: int, steps: int, longest: int, tokens_per_gpu: int) -> dict:
    sigma = np.log(6989 / 955) / 1.2816
    responses = 955 * np.exp(sigma * np.random.default_rng(0).standard_normal(samples))
    lengths = torch.tensor(np.minimum(responses, longest).round()).long() + PROMPT
    args = SimpleNamespace(
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        rollout=SimpleNamespace(batch_size=samples, n_samples_per_prompt=1),
        train=SimpleNamespace(batch_size=samples // steps, max_tokens_per_gpu=tokens_per_gpu, seed=42),
    )
    ones = torch.ones(samples, 1)
    numbers = torch.arange(samples).unsqueeze(1)
    rollout = Experience(sequences=numbers, attention_mask=ones.long(), action_mask=ones, total_length=lengths)
    shares = [split_experience_batch(share) for share in balance_experiences([rollout], args)]
    buffers = Ranks(ranks, args).plan(shares)

    trained, tokens, attention = [[] for _ in range(steps)], [], []
    for buffer in buffers:
        ends = buffer.dynamic_optimizer_step
        assert ends == buffers[0].dynamic_optimizer_step and sum(ends) == steps
        step_of_batch = np.cumsum([0, *ends[:-1]])
        tokens.append([])
        attention.append([])
        for step, indices in zip(step_of_batch, buffer.dynamic_indices):
            batch = [buffer.items[i] for i in indices]
            trained[step] += [sample.sequences.item() for sample in batch]
            tokens[-1].append(sum(float(sample.total_length) for sample in batch))
            attention[-1].append(sum(float(sample.total_length) ** 2 / 60_000 for sample in batch))
    assert sorted(sum(trained, [])) == list(range(samples))

    def busy(costs):
        return costs.mean(axis=0).sum() / costs.max(axis=0).sum()

    totals = [lengths[step].sum().item() for step in trained]
    return {
        "ratio": max(totals) / min(totals),
        "truncated": [(lengths[step] == longest + PROMPT).float().mean().item() for step in trained],
        "busy": busy(np.array(tokens)),
        "busy_attention": busy(np.array(tokens) + np.array(attention)),
    }


print(json.dumps(measure(*map(int, sys.argv[1:]))))

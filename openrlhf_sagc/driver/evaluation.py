"""The metrics of an evaluation: each prompt counts for the evaluation set it is from, and a failed reward counts."""

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_trainer import compute_eval_metrics

from openrlhf_sagc.driver.samples import Sample

FAILED = "eval_failed_rewards"  # the metric that counts the samples without a reward


def evaluation_metrics(samples: Sequence[Sample | None], prompts: Iterable, size: int) -> dict[str, float]:
    """OpenRLHF's metrics of an evaluation, and FAILED.

    OpenRLHF takes a prompt's text for its name, so that one in two evaluation sets would count for the last of them alone.
    Here its place is its name. A sample without a reward counts as the worst of the evaluation, and as 0 at most.

    Args:
        samples: `size` of them for each prompt, in the order of the prompts; None where the reward failed.
        prompts: the evaluation's dataloader.
        size: samples of a prompt.
    """
    places = itertools.count()
    named = [(sources, [next(places) for _ in texts], labels, images) for sources, texts, labels, images in prompts]
    worst = min([0.0, *(sample.reward or 0.0 for sample in samples if sample is not None)])
    counted = []
    for number, sample in enumerate(samples):
        fields = {"rewards": worst, "response_length": None, "truncated": None}
        if sample is not None:
            length, truncated = torch.tensor(sample.response_length), torch.tensor(sample.truncated)
            fields = {"rewards": sample.reward, "response_length": length, "truncated": truncated}
        counted.append(SimpleNamespace(prompts=[number // size], **fields))
    metrics = compute_eval_metrics(named, counted, size)
    return {**metrics, FAILED: float(sum(sample is None for sample in samples))} if metrics else {}

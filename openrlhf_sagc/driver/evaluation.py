"""Evaluations, and their metrics: each prompt counts for the evaluation set it is from, and a failed reward counts."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from openrlhf.trainer.ppo_trainer import compute_eval_metrics
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from tqdm import tqdm

from openrlhf_sagc.decisions.planner import StepPlanner
from openrlhf_sagc.decisions.records import ROLLOUT
from openrlhf_sagc.driver.engines import Engines
from openrlhf_sagc.driver.reward_failures import RewardFailures
from openrlhf_sagc.driver.samples import Sample
from openrlhf_sagc.driver.step_seconds import StepClock

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


class EvaluatingGenerator(SamplesGenerator):
    """OpenRLHF's samples generator, whose evaluations say which prompt a sample is of, and count failed rewards.

    Beside a pool an evaluation runs in another thread than the steps: it shares nothing with them but the engines.
    """

    planner: StepPlanner
    engines: Engines
    clock: StepClock
    eval_failures: RewardFailures
    _evaluated: Iterator[int] = iter(())  # numbers of the groups of an evaluation

    def _sample_of(self, response: dict, **generate_kwargs) -> Sample | None:
        """The sample of a response, or None if the reward failed."""
        raise NotImplementedError

    def evaluate(self, **generate_kwargs) -> dict[str, float]:
        """The metrics of an evaluation, see `evaluation_metrics`.

        Raises:
            RuntimeError: too many rewards failed.
        """
        samples = self.generate_eval_samples(**generate_kwargs)
        return evaluation_metrics(samples, self.eval_dataloader, generate_kwargs["n_samples_per_prompt"])

    @torch.no_grad()
    def generate_eval_samples(self, **generate_kwargs) -> list[Sample | None]:
        """Samples of the evaluation prompts, in the order of these; None where the reward failed.

        Raises:
            RuntimeError: too many rewards failed.
        """
        self.eval_failures.begin()
        self._evaluated = itertools.count()
        beside = self.planner.pool is not None
        if not beside:
            self.engines.resume()
        with nullcontext() if beside else self.clock.left_out():
            samples = super().generate_eval_samples(**generate_kwargs)
        if not beside:
            self.engines.pause()
        self.eval_failures.check(len(samples))
        return samples

    def _generate_vllm(self, dataloader_iter, num_prompts: int, dynamic_filtering: bool, **generate_kwargs):
        """OpenRLHF's, for an evaluation: (samples in the order of their prompts, number of prompts, exhausted).

        OpenRLHF gives them as they come back, so that only its text says which prompt a sample is of.
        """
        prompts, labels, images, exhausted = _collect_prompt_batch(dataloader_iter, num_prompts)
        if not prompts:
            return [], 0, True
        samples = []
        refs = self._dispatch_prompts_to_vllm(prompts, labels, images=images, **generate_kwargs)
        for ref, prompt, label in zip(tqdm(refs, desc="Generate samples of the evaluation"), prompts, labels):
            group, responses = next(self._evaluated), self.engines.result(ref)
            if not self.planner.pool:
                self.planner.evaluated(prompt, label, [response[ROLLOUT] for response in responses])
            for response in responses:
                rollout = response[ROLLOUT]
                if not rollout.finished or rollout.failure:
                    self.eval_failures.observe(rollout.failure or "the rollout was stopped", group, rollout.tokens)
                samples.append(self._sample_of(response, **generate_kwargs))
        return samples, len(prompts), exhausted

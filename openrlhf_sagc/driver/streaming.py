"""Groups on their way to the policy's actors while others still decode: what is sent when, and what came of it."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import ray
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_sagc.argument_checks import data_parallel_actors
from openrlhf_sagc.actors.streamed_training import train_bucket
from openrlhf_sagc.actors.training import StepShare
from openrlhf_sagc.decisions.records import Group
from openrlhf_sagc.decisions.step import Step


class Stream:
    """Sends committed groups to the actors in buckets; the last groups of a step are left to OpenRLHF's training.

    A step is `begin`, `send` any number of times, then `rest` and `end`. Actors run what they are sent in order, so nothing
    waits here.

    Args:
        maker: the GroupExperienceMaker, which knows the actors.
        kl_ctl: OpenRLHF's KL controller.
        stamped: gives the samples of groups, ready for the maker.
    """

    def __init__(self, maker, kl_ctl, stamped: Callable[[list[Group], Step, StepShare], list[Experience]]) -> None:
        self._maker, self._kl_ctl, self._stamped = maker, kl_ctl, stamped
        self._actors, self._args = maker.actor_model_group, maker.args
        self._ranks = data_parallel_actors(self._args)
        self._least = self._ranks * self._args.train.micro_batch_size  # samples of a bucket

    def begin(self, step: Step, progress: float) -> None:
        """A step begins, of which nothing is sent yet."""
        self._step = step
        samples = step.num_groups * step.group_size
        tokens = samples * (self._args.rollout.max_new_tokens or self._args.data.max_len)
        self.share = StepShare(progress, samples, divisor=2.0 ** math.ceil(math.log2(tokens)))
        self.made: list[SimpleNamespace] = []
        self._waiting: list[Group] = []
        self._sent: set[int] = set()
        self._refs: list = []
        self._trainings: list[list] = []

    def send(self, groups: list[Group]) -> None:
        """These groups are committed: send what there is once it is a micro-batch for every rank."""
        self._waiting += groups
        size = self._step.group_size
        last = math.ceil(self._ranks / size)  # groups for the end, a sample for each rank at least
        bucket = self._waiting[: max(self._step.num_groups - last - len(self._sent), 0)]
        if len(bucket) * size < self._least:
            return
        self._waiting = self._waiting[len(bucket) :]
        self._sent |= {group.number for group in bucket}
        experiences = self._maker.make_experience_batch(self._stamped(bucket, self._step, self.share))
        self.made += [
            SimpleNamespace(info=made.info, response_length=made.response_length, truncated=made.truncated)
            for made in experiences
        ]
        self._refs += self._maker.received
        self._refs += self._actors.async_run_method_batch(method_name="append", experience=experiences)
        self._trainings.append(self._actors.async_run_method("__ray_call__", train_bucket, self._kl_ctl.value))

    def rest(self, trained: list[Group]) -> list[Group]:
        """The groups that are still to be trained."""
        return [group for group in trained if group.number not in self._sent]

    def end(self) -> float:
        """Generation is over: the actors' seconds of training that are over too.

        Raises:
            RayError: an actor failed.
        """
        ray.get(self._refs)
        hidden = 0.0
        for refs in self._trainings:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            if len(ready) == len(refs):
                hidden += ray.get(refs)[0]
        return hidden

    def check(self) -> None:
        """Raise what has gone wrong in the actors, once they are done."""
        ray.get([ref for refs in self._trainings for ref in refs])

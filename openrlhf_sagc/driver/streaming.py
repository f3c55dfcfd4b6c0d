"""Groups on their way to the policy's actors while others still decode: what is sent when, and what came of it."""

import math
import time
from collections.abc import Iterable
from types import SimpleNamespace

import ray
from ray import ObjectRef

from openrlhf_sagc.config.layout import data_parallel_actors
from openrlhf_sagc.config.savings import optimizer_steps
from openrlhf_sagc.decisions.buckets import BucketPlan
from openrlhf_sagc.decisions.records import Group
from openrlhf_sagc.decisions.step import Step
from openrlhf_sagc.driver.experience import GroupExperienceMaker, GroupSample, stamped
from openrlhf_sagc.training.streamed_training import train_bucket
from openrlhf_sagc.training.training import StepShare


class Stream:
    """Sends committed groups to the actors in buckets; the last groups of a step are left to OpenRLHF's training.

    A step is `begin`, `send` any number of times, `rest`, then `join`. Actors run what they are sent in order, so that
    nothing waits for them before `join`.

    `share` is the step that the samples are of. `made` has what the log needs of the experiences that were sent.

    Args:
        maker: makes the experiences, and knows the actors.
        kl_ctl: OpenRLHF's KL controller.
    """

    def __init__(self, maker: GroupExperienceMaker, kl_ctl) -> None:
        self._maker, self._kl_ctl = maker, kl_ctl
        self._actors, self._args = maker.actor_model_group, maker.args
        self._ranks = data_parallel_actors(self._args)

    def begin(self, step: Step, progress: float) -> None:
        """A step begins before which this share of the run's prompts was used."""
        samples = step.num_groups * step.group_size
        tokens = samples * (self._args.rollout.max_new_tokens or self._args.data.max_len)
        self.share = StepShare(progress, samples, divisor=2.0 ** math.ceil(math.log2(tokens)))
        self.made: list[SimpleNamespace] = []
        self._size = step.group_size
        self._plan = BucketPlan(
            step.num_groups,
            step.group_size,
            ranks=self._ranks,
            micro_batch_size=self._args.train.micro_batch_size,
            optimizer_steps=optimizer_steps(self._args),
        )
        self._may_send = self._maker.actors_make_old_log_probs
        self._trainings: list[list[ObjectRef]] = []  # of each bucket, by rank
        self._others: list[ObjectRef] = []

    @property
    def has_sent(self) -> bool:
        """Whether a part of the step is with the actors."""
        return bool(self._plan.sent)

    def send(self, groups: list[Group]) -> None:
        """These groups are committed: send all that wait if they make a bucket."""
        bucket = self._plan.add(groups) if self._may_send else []
        if not bucket:
            return
        experiences = self._maker.make_bucket(stamped(bucket, self.share))
        self.made += [
            SimpleNamespace(info=made.info, response_length=made.response_length, truncated=made.truncated)
            for made in experiences
        ]
        self._others += self._maker.received
        self._others += self._actors.async_run_method_batch(method_name="append", experience=experiences)
        self._trainings.append(self._actors.async_run_method("__ray_call__", train_bucket, self._kl_ctl.value))

    def rest(self, trained: list[Group]) -> list[Group]:
        """The groups that are still to be trained."""
        return self._plan.rest(trained)

    def metrics(self) -> dict[str, float]:
        """Scalars of the step, at the end of its generation: the share of its samples that was sent, and seconds of
        training that generation has hidden.

        Raises:
            RayError: an actor has failed.
        """
        if self._others:  # an actor's error, before those that come of it
            done, _ = ray.wait(self._others, num_returns=len(self._others), timeout=0)
            ray.get(done)
        hidden = 0.0
        for refs in self._trainings:
            done, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            hidden += ray.get(refs[0]) if len(done) == len(refs) else 0.0
        share = len(self._plan.sent) * self._size / self.share.num_samples
        return {"stream/sample_share": share, "stream/hidden_seconds": hidden}

    def join(self) -> float:
        """Wait until the actors have trained what was sent. Returns seconds.

        Raises:
            RayError: an actor has failed.
        """
        start = time.perf_counter()
        ray.get([*self._others, *(ref for refs in self._trainings for ref in refs)])
        return time.perf_counter() - start


class StepSamples(list[GroupSample]):
    """The samples of a step that are still to be trained, with the scalars that its log is to have.

    `stream` has sent the others to the actors; None if there are none.
    """

    def __init__(self, samples: Iterable[GroupSample], metrics: dict[str, float], stream: Stream | None = None):
        super().__init__(samples)
        self.metrics, self.stream = metrics, stream

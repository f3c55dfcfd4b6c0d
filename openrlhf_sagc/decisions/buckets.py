"""Which groups are sent to the actors together while others still decode."""

import math

from openrlhf_sagc.decisions.records import FEWEST, Group

# Of the samples that are not sent yet. There are few buckets, since each has a price in the driver and in the actors, and the
# last ones are small.
LEAST_SHARE = 1 / 2


class BucketPlan:
    """The buckets of one step: whole groups, in the order in which they were committed.

    A bucket has LEAST_SHARE of the samples that are not sent yet, and a micro-batch for each rank.

    The last groups are left for the end, a sample for each rank and optimizer step at least, however many of their rewards fail.

    `sent` has the numbers of the groups in all buckets so far.

    Args:
        num_groups: of the step.
        group_size: samples of a group.
        ranks: data-parallel actors.
        micro_batch_size: samples of a micro-batch.
        optimizer_steps: of a rollout. A bucket has a sample for each of them on each rank.
    """

    def __init__(
        self, num_groups: int, group_size: int, *, ranks: int, micro_batch_size: int, optimizer_steps: int = 1
    ) -> None:
        self._size = group_size
        self._groups = num_groups
        self._least = ranks * max(micro_batch_size, optimizer_steps)  # samples of a bucket
        fewest = min(group_size, FEWEST)
        self._most = max(num_groups - math.ceil(ranks * optimizer_steps / fewest), 0)  # groups of all buckets
        self._waiting: list[Group] = []
        self.sent: set[int] = set()

    def add(self, groups: list[Group]) -> list[Group]:
        """These groups are committed; the bucket to send now, empty if what waits makes none."""
        if not groups:
            return []
        self._waiting += groups
        bucket = self._waiting[: self._most - len(self.sent)]
        left = (self._groups - len(self.sent)) * self._size
        if not bucket or sum(len(group.samples) for group in bucket) < max(self._least, left * LEAST_SHARE):
            return []
        self._waiting = self._waiting[len(bucket) :]
        self.sent |= {group.number for group in bucket}
        return bucket

    def rest(self, trained: list[Group]) -> list[Group]:
        """The groups of `trained` that are in no bucket."""
        return [group for group in trained if group.number not in self.sent]

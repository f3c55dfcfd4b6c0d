"""Rewards that are missing after all attempts: counted, each reason reported once, and the end of a run that has too many."""

import re
from collections.abc import Callable

from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.redaction import without_secrets

MOST_REASONS = 20  # that a run is warned of; those with the same words are one


class RewardFailures:
    """The failed rewards of a step.

    Args:
        args: OpenRLHF's arguments, for the flags that the messages name.
        warn: called with the first message of a run, then with every further reason, up to MOST_REASONS.
    """

    def __init__(self, args: Settings, warn: Callable[[str], None]) -> None:
        reward, agent = args.reward, args.train.agent_func_path
        urls = ",".join(map(without_secrets, reward.remote_url or []))
        source = f"--reward.remote_url {urls}" if urls else "--data.prompt_dataset"  # with a reward model
        self._source = f"--train.agent_func_path {agent}" if agent else source
        self._reward = reward
        self._warn = warn
        self._reasons: set[str] = set()  # that the run was warned of
        self.begin()

    def begin(self) -> None:
        """Forget the failures of the step before."""
        self._failures: list[str] = []
        self._groups: set[int] = set()

    def __len__(self) -> int:
        return len(self._failures)

    def observe(self, failure: str, group: int | None) -> None:
        """Count a sample without a reward, for this reason, of the group with this number; None if no group lacks it."""
        self._failures.append(failure)
        if group is not None:
            self._groups.add(group)

    @property
    def first(self) -> str:
        """The first failure of the step, behind the flag of the reward that failed; there is one."""
        return f"{self._source} failed first with {self._failures[0]}"

    def check(self, num_groups: int) -> None:
        """Warn of failures among the step's `num_groups`, or end the run.

        One group alone does not end a run whose allowed share is above 0: it may exceed the share, and a run that is
        resumed would meet its prompt again.

        Raises:
            RuntimeError: more than the allowed share of the groups lacks a reward.
        """
        if not self._failures:
            return
        attempts, max_share, groups = self._reward.retries + 1, self._reward.max_failure_share, len(self._groups)
        message = (
            f"{self._source}: {groups} of {num_groups} groups lack a reward after at most {attempts} attempts, first: "
            f"{self._failures[0]}"
        )
        if groups > max_share * num_groups and (groups > 1 or not max_share):
            raise RuntimeError(f"{message}; --reward.max_failure_share {max_share:g} allows fewer")
        for failure in self._failures:
            reason = re.sub(r"[\W\d]+", " ", failure)
            if reason not in self._reasons and len(self._reasons) < MOST_REASONS:
                self._warn(f"{self._source}: another reason: {failure}" if self._reasons else message)
                self._reasons.add(reason)

"""Rewards that are missing after all attempts: counted, reported once, and the end of a run that has too many."""

from collections.abc import Callable
from types import SimpleNamespace


class RewardFailures:
    """The failed rewards of a step.

    Args:
        args: OpenRLHF's arguments, for the flags that the messages name.
        warn: called once in a run, with the first message.
    """

    def __init__(self, args: SimpleNamespace, warn: Callable[[str], None]) -> None:
        reward, agent = args.reward, args.train.agent_func_path
        self._source = (
            f"--train.agent_func_path {agent}" if agent else f"--reward.remote_url {','.join(reward.remote_url or [])}"
        )
        self._reward = reward
        self._warn: Callable[[str], None] | None = warn
        self.begin()

    def begin(self) -> None:
        """Forget the failures of the step before."""
        self._failures: list[str] = []

    def __len__(self) -> int:
        return len(self._failures)

    def observe(self, failure: str) -> None:
        """Count a sample without a reward, for this reason."""
        self._failures.append(failure)

    def check(self, num_samples: int) -> None:
        """Warn of failures among the step's `num_samples`, or end the run.

        Raises:
            RuntimeError: more than the allowed share of the samples has no reward.
        """
        if not self._failures:
            return
        attempts, max_share = self._reward.retries + 1, self._reward.max_failure_share
        message = (
            f"{self._source}: {len(self)} of {num_samples} samples have no reward after {attempts} attempts, "
            f"first: {self._failures[0]}"
        )
        if len(self) > max_share * num_samples:
            raise RuntimeError(f"{message}; --reward.max_failure_share {max_share:g} allows fewer")
        if self._warn:
            self._warn(message)
        self._warn = None

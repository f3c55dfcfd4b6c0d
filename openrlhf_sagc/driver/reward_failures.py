"""Rewards that are missing after all attempts: counted, reported once, and the end of a run that has too many."""

from collections.abc import Callable
from types import SimpleNamespace

from openrlhf_sagc.redaction import without_secrets


class RewardFailures:
    """The failed rewards of a step.

    Args:
        args: OpenRLHF's arguments, for the flags that the messages name.
        warn: called once in a run, with the first message.
    """

    def __init__(self, args: SimpleNamespace, warn: Callable[[str], None]) -> None:
        reward, agent = args.reward, args.train.agent_func_path
        urls = ",".join(map(without_secrets, reward.remote_url or []))
        self._source = f"--train.agent_func_path {agent}" if agent else f"--reward.remote_url {urls}"
        self._reward = reward
        self._warn: Callable[[str], None] | None = warn
        self.begin()

    def begin(self) -> None:
        """Forget the failures of the step before."""
        self._failures: list[str] = []
        self._prompts: set[str] = set()

    def __len__(self) -> int:
        return len(self._failures)

    def observe(self, failure: str, prompt: str) -> None:
        """Count a sample of this prompt without a reward, for this reason."""
        self._failures.append(failure)
        self._prompts.add(prompt)

    @property
    def first(self) -> str:
        """The first failure of the step, behind the flag of the reward that failed; there is one."""
        return f"{self._source} failed first with {self._failures[0]}"

    def check(self, num_samples: int) -> None:
        """Warn of failures among the step's `num_samples`, or end the run.

        One prompt alone does not end a run whose allowed share is above 0: all its samples may exceed the share, and a run
        that is resumed would meet it again.

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
        if len(self) > max_share * num_samples and (len(self._prompts) > 1 or not max_share):
            raise RuntimeError(f"{message}; --reward.max_failure_share {max_share:g} allows fewer")
        if self._warn:
            self._warn(message)
        self._warn = None

"""Rewards that are missing after all attempts: counted, each reason reported once, and the end of a run that has too many."""

import re
import statistics
from collections.abc import Callable, Sequence

from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.redaction import shown

MOST_REASONS = 20  # that a run is warned of; those with the same words are one
OTHER_LENGTH = 1.2  # times that samples without a reward are as long as trained ones, from which on a run says so


class RewardFailures:
    """The failed rewards of a step.

    Args:
        args: OpenRLHF's arguments, for the flags that the messages name.
        warn: called with the first message of a run, then with every further reason, up to MOST_REASONS.
    """

    def __init__(self, args: Settings, warn: Callable[[str], None]) -> None:
        reward, agent = args.reward, args.train.agent_func_path
        urls = ",".join(shown(url, "--reward.remote_url") for url in reward.remote_url or [])
        source = f"--reward.remote_url {urls}" if urls else "--data.prompt_dataset"  # with a reward model
        self._source = f"--train.agent_func_path {agent}" if agent else source
        self._reward = reward
        self._warn = warn
        self._reasons: set[str] = set()  # that the run was warned of
        self._failed, self._trained = [0, 0], [
            0,
            0,
        ]  # samples without a reward, and trained ones: number and tokens so far
        self._has_compared = False  # their lengths, and found them to differ
        self.begin()

    def begin(self) -> None:
        """Forget the failures of the step before."""
        self._failures: list[str] = []
        self._tokens: list[int] = []
        self._missing, self._groups = 0, set[int]()

    def __len__(self) -> int:
        return len(self._failures)

    def observe(self, failure: str, group: int | None, tokens: int) -> None:
        """Count a sample without a reward.

        Args:
            failure: why it has none.
            group: that lacks it, by number; None if no group does.
            tokens: of its response; 0 if it has none.
        """
        self._failures.append(failure)
        if tokens:
            self._tokens.append(tokens)
        if group is not None:
            self._missing += 1
            self._groups.add(group)

    @property
    def first(self) -> str:
        """The first failure of the step, behind the flag of the reward that failed."""
        failed = f"failed first with {self._failures[0]}" if self._failures else "failed in the step before"
        return f"{self._source} {failed}"

    def check(self, num_samples: int) -> None:
        """Warn of failures among the step's `num_samples`, or end the run.

        Those of one group do not end a run whose allowed share is above 0: they may exceed the share, and a run that is
        resumed would meet their prompt again.

        Raises:
            RuntimeError: more than the allowed share of the samples lacks a reward.
        """
        if not self._failures:
            return
        attempts, max_share = self._reward.retries + 1, self._reward.max_failure_share
        message = f"samples lack a reward after at most {attempts} attempts, first: {self._failures[0]}"
        if self._missing > max_share * num_samples and (len(self._groups) > 1 or not max_share):
            raise RuntimeError(
                f"{self._source}: {self._missing} of {num_samples} {message}; --reward.max_failure_share {max_share:g} allows fewer"
            )
        message = f"{self._source}: {message} (rollout/reward_failures, or eval_failed_rewards, counts them)"
        for failure in self._failures:
            reason = re.sub(r"[\W\d]+", " ", failure)
            if reason not in self._reasons and len(self._reasons) < MOST_REASONS:
                self._warn(f"{self._source}: another reason: {failure}" if self._reasons else message)
                self._reasons.add(reason)

    def metrics(self, num_samples: int, trained: Sequence[int]) -> dict[str, float]:
        """Scalars of the step: `rollout/reward_failures`, their share of its `num_samples`, and their mean length over that
        of the `trained` samples, in tokens, where there are both. Warns once in a run if these lengths differ.
        """
        metrics = {"rollout/reward_failures": float(len(self))}
        metrics["rollout/reward_failure_share"] = self._missing / num_samples
        if self._tokens and any(trained):
            metrics["rollout/failed_length_ratio"] = statistics.fmean(self._tokens) / statistics.fmean(trained)
        for of_run, tokens in ((self._failed, self._tokens), (self._trained, trained)):
            of_run[0] += len(tokens)
            of_run[1] += sum(tokens)
        self._compare_lengths()
        return metrics

    def _compare_lengths(self) -> None:
        """Warn if samples without a reward are of another length than trained ones, by more than chance.

        The standard deviation of lengths is taken to be half their mean, and chance two standard errors.
        """
        (count, tokens), (others, their_tokens) = self._failed, self._trained
        if self._has_compared or not count or not their_tokens:
            return
        ratio = (tokens / count) / (their_tokens / others)
        if max(ratio, 1 / ratio) >= OTHER_LENGTH and abs(ratio - 1) >= count**-0.5:
            self._has_compared = True
            timeout = f": --reward.timeout {self._reward.timeout:g} may be too short for them" if ratio > 1 else ""
            self._warn(
                f"{self._source}: samples without a reward ({count} so far) have {tokens / count:.0f} tokens on average, "
                f"{ratio:.2f} times those of trained samples, so too few of such a length are trained{timeout}"
            )

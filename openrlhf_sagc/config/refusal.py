"""The end of a run with one line, and the names of flags that such lines have."""

from collections.abc import Sequence

from openrlhf_sagc.redaction import without_secrets

PREFIX = "--rollout.sagc."
TAIL = "--rollout.tail_batching."
FILTER = "--algo.dynamic_filtering_"
REWARD = "--reward."
LENGTH_AWARE = "--rollout.length_aware_dispatch"
DRAFTS = "--rollout.drafts"
POOL = "--rollout.vllm_generate_batch_size"
MAX_AGE = "--rollout.max_age"
AGENT_TIMEOUT = "--rollout.agent_timeout"
TRACE = "--rollout.trace"
LENGTH_HISTORY = "--rollout.length_history"
RESUME_DATA = "--rollout.resume_data"
CHECK_ROWS = "--data.check_rows"
ROLLOUTS_TO = "--train.rollouts_to"
ROLLOUTS_FROM = "--train.rollouts_from"
OFF = "python -m openrlhf_sagc.off"
USUAL_SIZE = 8  # of a group


def refuse(condition: object, message: str) -> None:
    """End the run with this line if the condition holds."""
    if condition:
        raise refusal(message)


def refusal(message: str) -> SystemExit:
    """The end of the run with this line, in which no flag shows its secrets."""
    return SystemExit(f"openrlhf_sagc: {without_secrets(message)}")


def words(sizes: Sequence[float]) -> str:
    """The sizes, or other numbers, as they stand on a command line."""
    return " ".join(map(str, sizes))

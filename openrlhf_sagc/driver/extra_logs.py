"""The logs that rewards and agents give beside their rewards: means over a step's samples, under names of their own."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from openrlhf_sagc.driver.samples import Sample
from openrlhf_sagc.engine.answers import LOGS, MOST_NAMES

OWN_NAMES = frozenset(  # of OpenRLHF's log and of this package's
    "response_clip_ratio reward score return kl logprobs_diff group_reward_std advantage_kernel response_length truncated "
    "total_length policy_loss entropy_loss actor_lr actor_grad_norm actor_optimizer_seconds ppo_clip_ratio ppo_kl vllm_kl "
    "is_filter_ratio critic_loss critic_lr critic_grad_norm values dynamic_filtering_pass_rate generated_samples "
    "global_step".split()
)
OWN_FOLDERS = frozenset(
    "timing rollout step_seconds sagc dynamic_filtering tail_batching token_weight stream eval extra_logs".split()
)


def step_logs(samples: Iterable[Sample]) -> tuple[dict[str, float], dict[str, str]]:
    """What the step's log says of its samples' logs, and warnings by kind.

    Each name's mean is over the samples that have it. Names of OpenRLHF's log or of this package's are below `extra_logs/`.
    Of more than MOST_NAMES names, those of the most samples are logged.
    """
    numbers: dict[str, list[float]] = defaultdict(list)
    for sample in samples:
        for name, number in sample.logs.items():
            numbers[name].append(number)
    names = sorted(numbers, key=lambda name: (-len(numbers[name]), name))
    warnings = {}
    if len(names) > MOST_NAMES:
        warnings["many logs"] = (
            f"the samples of a step have {len(names)} names in their {LOGS}: the {MOST_NAMES} of the most samples are logged"
        )
    own = sorted(filter(is_own_name, names[:MOST_NAMES]))
    if own:
        warnings["own names"] = f"{LOGS}[{own[0]!r}] is a name of the run's own log: it is logged as {LOGS}/{own[0]}"
    return {logged_name(name): fmean(numbers[name]) for name in names[:MOST_NAMES]}, warnings


def is_own_name(name: str) -> bool:
    """Whether the run itself logs something under this name, or may."""
    return name in OWN_NAMES or name.split("/")[0] in OWN_FOLDERS and "/" in name


def logged_name(name: str) -> str:
    """The name as it is logged."""
    return f"{LOGS}/{name}" if is_own_name(name) else name

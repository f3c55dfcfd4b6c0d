r"""The reward of the launch scripts, for --reward.remote_url: 1 for the right final answer of a math problem, else 0.

The answer is what the last \boxed{} holds, else what follows the last `####`, or `Answer:` at the beginning of a line;
thoughts in <think> are not read. docs/math_reward.md says what counts as right. Threads may call it; a comparison that
takes too long counts as wrong. Needs math-verify, pyseccomp and libseccomp2.

Raises:
    ImportError: one of them is not installed; the message says how to install it.
"""

import math
import re
from importlib.util import find_spec

import torch

from openrlhf_sagc.grading.algebra import equal_by_algebra
from openrlhf_sagc.grading.comparison import decided
from openrlhf_sagc.grading.extraction import THOUGHT, extract_answer
from openrlhf_sagc.grading.walls import seccomp_filter

if not find_spec("math_verify"):
    raise ImportError("openrlhf_sagc/math_reward.py needs math-verify: pip install math-verify")
try:
    seccomp_filter()
except RuntimeError as error:
    raise ImportError(f"openrlhf_sagc/math_reward.py compares answers in a confined process: {error}") from None

_OPEN_THOUGHT = re.compile(rf"(?:{THOUGHT.pattern})\s*\Z", re.IGNORECASE)
_TAIL = 64  # characters of a prompt's end by which it is found if its beginning was cut off


def reward_func(queries, prompts, labels, **kwargs):
    """Rewards for `queries`, each a prompt of `prompts` with its response; `labels` are answers or worked solutions.

    Returns:
        Float tensors [len(queries)]: `rewards`, `scores` (the same values) and, in `extra_logs`, the samples in which an
        answer was found and those whose comparison was stopped.

    Raises:
        ValueError: a label is missing or empty. Its group is dropped, as of every reward that fails.
    """
    found, verdicts = [], []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        gold = _gold(label)
        answer = extract_answer(response_of(query, prompt))
        found.append(answer is not None)
        verdicts.append(answer is not None and _equal(gold, answer))
    rewards = torch.tensor([float(bool(verdict)) for verdict in verdicts])
    stopped = torch.tensor([float(verdict is None) for verdict in verdicts])
    logs = {"answer_found": torch.tensor(found, dtype=torch.float), "comparison_stopped": stopped}
    return {"rewards": rewards, "scores": rewards.clone(), "extra_logs": logs}


def _gold(label) -> str:
    """The answer of a label."""
    text = "" if label is None or isinstance(label, float) and math.isnan(label) else str(label)
    found = extract_answer(text)
    gold = found if found is not None else "" if "####" in text else text
    if not gold.strip():
        raise ValueError(f"the label {label!r:.80} has no answer: give every row one, or remove it from the data")
    return gold


def _equal(gold: str, answer: str) -> bool | None:
    """Whether they are equal; None if the comparison was stopped."""
    verdict = decided(gold, answer)
    try:
        return equal_by_algebra(gold, answer) if verdict is None else verdict
    except TimeoutError:
        return None


def response_of(query: str, prompt: str) -> str:
    """The response in `query`, which OpenRLHF decodes from the tokens of prompt and response.

    The prompt is left out, as it may hold a worked example. One that was cut off on its left is found by its end; if that
    was respelled by the tokenizer, the whole query is returned. A response to a prompt that opens a thought begins with it.
    """
    end, at = prompt, query.find(prompt)
    if at < 0:  # the last place where it can be
        end = prompt[-_TAIL:]
        at = query.rfind(end, 0, len(prompt) + _TAIL)
    return query if at < 0 else "<think>" * bool(_OPEN_THOUGHT.search(prompt[-40:])) + query[at + len(end) :]

"""Grading of responses: final answers compared by math-verify, or an OpenRLHF reward file, in processes that can be killed.

math-verify knows more equal forms than OpenRLHF's `openrlhf.utils.math_utils.grade_answer`; eval/studies/grader has
both.
"""

import importlib.util
import itertools
import os
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
from pebble import ProcessPool
from rich.progress import track

from openrlhf_sagc.grading.algebra import Comparisons
from openrlhf_sagc.grading.comparison import decided
from openrlhf_sagc.grading.extraction import extract_answer

REWARD_SECONDS = 180
RIGHT_ABOVE = 0.5  # a reward above it is that of a right answer, for rewards of 0 and 1 as for -1 and 1


def rewards_of(samples: list, file: Path) -> Iterator:
    """What the file's reward_func gives each sample, in order; an exception for one on which it failed or took too long."""
    workers = min(len(os.sched_getaffinity(0)), len(samples), 16)
    with ProcessPool(workers, initializer=load_reward, initargs=[file], context=get_context("spawn")) as pool:
        results = pool.map(reward_of, samples, timeout=REWARD_SECONDS).result()
        try:
            for _ in track(samples, description="grading", transient=True):
                try:
                    result = next(results)
                except Exception as error:  # also TimeoutError and pebble.ProcessExpired: that process is gone
                    result = error
                yield result
        finally:
            pool.stop()  # does not wait for what nobody asks for any more


def equal_answers(pairs: set[tuple[str, str]], label: str) -> dict[tuple[str, str], bool | None]:
    """Whether the answers of each pair (gold, answer) are equal; None if the comparison had to be stopped."""
    equal = {pair: decided(*pair) for pair in sorted(pairs)}
    hard = [pair for pair, verdict in equal.items() if verdict is None]
    comparisons = Comparisons(processes := min(len(os.sched_getaffinity(0)), 16))

    def compared(pair: tuple[str, str]) -> bool | None:
        try:
            return comparisons.verdict(*pair)
        except TimeoutError:
            return None

    try:
        with ThreadPool(4 * processes) as threads:  # some wait behind others; none keeps an interrupted run
            verdicts = threads.imap(compared, hard)
            equal.update(zip(hard, track(verdicts, description=label, total=len(hard), transient=True)))
    except RuntimeError as error:
        raise SystemExit(f"eval/evaluate.py: --grader math: {error}") from None
    return equal


def grade_math(rows: list[dict]) -> int:
    """Add `answers` (str or None), `correct` (bool) and `votes` (int or None, equal for equal answers) to each row.

    A row has `label`, the gold answer or a text that `extract_answer` finds it in, and `responses`, N of them.

    Returns:
        Number of distinct comparisons that were stopped; they count as different answers.
    """
    golds = [extract_answer(row["label"]) or row["label"] for row in rows]
    for row in rows:
        row["answers"] = [extract_answer(response) for response in row["responses"]]
    found = [sorted({answer for answer in row["answers"] if answer}) for row in rows]
    against_gold = equal_answers({(g, a) for g, answers in zip(golds, found) for a in answers}, "grading")
    wrong = [[a for a in answers if not against_gold[gold, a]] for gold, answers in zip(golds, found)]
    compared = [[a for a in answers if against_gold[gold, a] is False] for gold, answers in zip(golds, wrong)]
    pairs = {pair for answers in compared for pair in itertools.combinations(answers, 2)}
    among_wrong = equal_answers(pairs, "grouping answers")
    for row, gold, wrong_answers in zip(rows, golds, wrong):
        vote = {a: 0 for a in row["answers"] if a and against_gold[gold, a]}
        for i, answer in enumerate(wrong_answers):
            same = next((other for other in wrong_answers[:i] if among_wrong.get((other, answer))), None)
            vote[answer] = vote[same] if same is not None else i + 1
        row["votes"] = [vote.get(answer) for answer in row["answers"]]
        row["correct"] = [v == 0 for v in row["votes"]]
    return sum(verdict is None for equal in (against_gold, among_wrong) for verdict in equal.values())


def load_reward(file: Path) -> None:
    """Make the file's reward_func known to this process."""
    global reward_func
    spec = importlib.util.spec_from_file_location("reward_func", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    reward_func = module.reward_func


def reward_of(sample: tuple[str, str, str]) -> float:
    """The score, else the reward, of (query, prompt, label), which OpenRLHF also gives one at a time."""
    result = reward_func(*([text] for text in sample))
    score = np.asarray(result["rewards"] if result.get("scores") is None else result["scores"], dtype=float).item()
    if not np.isfinite(score):
        raise ValueError(f"the score is {score}")
    return score


def grade_with_file(rows: list[dict], file: Path) -> None:
    """Add `rewards` (float) and `correct` (bool: a reward above 0.5) to each row, which has prompt, label, responses.

    Raises:
        SystemExit: `file` has no reward_func, or it failed or took more than 180 s for a sample.
    """
    try:
        load_reward(file)
    except Exception as error:
        raise SystemExit(f"eval/evaluate.py: --grader {file}: no reward_func could be loaded: {error!r}") from None
    samples = [(row["prompt"] + text, row["prompt"], row["label"]) for row in rows for text in row["responses"]]
    rewards = rewards_of(samples, file)
    for row in rows:
        row["rewards"] = []
        for i, reward in enumerate(itertools.islice(rewards, len(row["responses"]))):
            if isinstance(reward, BaseException):
                where = f"prompt_id {row['prompt_id']}, response {i}"
                raise SystemExit(f"eval/evaluate.py: --grader {file}: reward_func failed at {where}: {reward!r}")
            row["rewards"].append(reward)
        row["correct"] = [reward > RIGHT_ABOVE for reward in row["rewards"]]

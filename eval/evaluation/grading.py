"""Grading of responses: final answers compared by math-verify, or an OpenRLHF reward file, in processes that can be killed.

math-verify knows more equal forms than OpenRLHF's `openrlhf.utils.math_utils.grade_answer`; eval/check_grader.py measures
both.
"""

import importlib.util
import itertools
import logging
import os
import re
import resource
from collections.abc import Callable, Iterator
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
from pebble import ProcessPool
from rich.progress import track

COMPARISON_SECONDS, REWARD_SECONDS = 15, 180
WORKER_BYTES = 4 << 30  # that a comparing process may allocate
MAX_CHARACTERS = 1000  # longer answers are right only if they are the same text
RIGHT_ABOVE = 0.5  # a reward above it is that of a right answer, for rewards of 0 and 1 as for -1 and 1

OPEN = r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{"
TEXT = re.compile(OPEN + r"([^{}]*)\}")
GAP = r"(?:\s|~|\\[,;:! ])"
NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d+)?")
OPTION = re.compile(r"\(?([A-J])\)?(?:[.:)].*)?", re.DOTALL)  # C, (C), C) what it says
LETTER = re.compile(  # of an option: no quantity (5 A), article or pronoun (A line, I think)
    r"(?<![\w\\{^])(?<!\d )(?<!\\circ )(?:[B-HJ]|[AI](?! [a-z]))(?![\w^'])"
)
WORD = re.compile(r"[A-Za-z]{4,}")
BASE = re.compile(r"\d_\{?(\d+)")
NOON = re.compile(r"\d([ap])\.?m\b")
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALE = re.compile(rf"(?<=\d){GAP}*({OPEN}\s*)?({'|'.join(SCALES)})s?\b", re.IGNORECASE)
UNIT = re.compile(rf"(?:(?<=\d)|(?<=\d\}}))(?:{GAP}*{OPEN}([^{{}}]*)\}}|{GAP}+([A-Za-z]{{3,}}(?: [A-Za-z]+)*)$)")
NO_UNIT = re.compile(  # words that make another number of the one before them
    r"^\s*(?:squared|cubed|factorial)\b"
    r"|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|half|halves|thirds?"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|(?:four|fif|six|seven|eigh|nin|ten)ths?"
    r"|(?:hundred|thousand|[bm]illion|trillion)(?:s|ths?)?|dozens?|sin|cos|tan|log|sqrt|infinity"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|sigma|omega|phi|psi|rho|tau|pi)\b",
    re.IGNORECASE,
)


def extract_answer(response: str) -> str | None:
    r"""What the last `\boxed{...}` holds or, without a box, what follows the last `####`; None if there is neither."""
    open_braces: list[tuple[int, bool]] = []  # where the content starts, and whether it is a box's
    last = None
    for token in re.finditer(r"(\\(?:boxed|fbox)\s*)?\{|\\.|\}", response, re.DOTALL):
        if token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((token.end(), token[1] is not None))
        elif token[0] == "}" and open_braces:
            start, box = open_braces.pop()
            if box and (last is None or start > last[0]):
                last = start, token.start()
    if last:
        return response[slice(*last)].strip()
    marked = re.findall(r"^####[ \t]*(.+?)[ \t]*$", response, re.MULTILINE)
    return marked[-1] if marked else None


def cleaned(answer: str) -> str:
    """The answer in LaTeX that math-verify reads."""
    answer = answer.strip().removesuffix(".").strip("$ ")
    for symbol, latex in {"−": "-", "–": "-", "°": r"^\circ", r"\varnothing": r"\emptyset", r"\$": ""}.items():
        answer = answer.replace(symbol, latex)
    answer = re.sub(r",\\!\s*|\{,\}", ",", answer)  # thousands
    answer = SCALE.sub(lambda match: rf" \cdot 10^{{{SCALES[match[2].lower()]}}}{match[1] or ''}", answer)
    return UNIT.sub(lambda match: rf"\text{{ {match[match.lastindex]}}}", answer)


def normalized(answer: str) -> str:
    """The answer without what only changes its looks; equal strings are equal answers."""
    answer = re.sub(r"\\left\b|\\right\b|\\[!,;: ]|~", "", cleaned(answer))
    answer = TEXT.sub(r"\1", re.sub(r"\\[dt]frac\b", r"\\frac", answer)).strip().removesuffix(".")
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", answer)


def options(answer: str) -> set[str]:
    """The letters of options that the answer names."""
    return set(LETTER.findall(re.sub(GAP + "+", " ", TEXT.sub(r" \1 ", cleaned(answer)))))


def counting_words(answer: str) -> list[str]:
    """Words behind the answer's numbers that make other numbers of them: hundred, and a half."""
    words = (match[match.lastindex].strip().casefold() for match in UNIT.finditer(cleaned(answer)))
    return [text for text in words if NO_UNIT.search(text)]


def number(text: str) -> Fraction | None:
    """The decimal number that the text is, exactly; None if it is none."""
    if not NUMBER.fullmatch(text) or not re.search(r"^[^eE]*\d", text):
        return None
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0) if abs(int(exponent or 0)) < 1000 else None


def decided(gold: str, answer: str) -> bool | None:
    """Whether the answers are equal, if that is plain without algebra, else None.

    Numbers are compared exactly, where math-verify rounds decimals to 6 digits. Words are compared as words, where it
    multiplies their letters. Digits in different bases differ, and times before and after noon; it drops both.
    """
    a, b = normalized(gold), normalized(answer)
    if a == b:
        return True
    if max(len(a), len(b)) > MAX_CHARACTERS:
        return False
    if (x := OPTION.fullmatch(a)) and (y := OPTION.fullmatch(b)):
        return x[1] == y[1] and options(gold) == options(answer)
    if WORD.fullmatch(a) and WORD.fullmatch(b):
        return a.casefold() == b.casefold()
    if counting_words(gold) != counting_words(answer):
        return False
    x, y = number(a), number(b)
    if x is not None and y is not None:
        return x == y
    marks = [(pattern.search(a), pattern.search(b)) for pattern in (BASE, NOON)]
    return False if any(x and y and x[1] != y[1] for x, y in marks) else None


def verified(pair: tuple[str, str]) -> bool:
    """Whether math-verify finds (gold, answer) equal. Main thread only: its own limit of 5 s is an alarm."""
    from math_verify import parse, verify

    gold, answer = (parse(rf"\boxed{{{cleaned(text)}}}") for text in pair)
    return verify(gold, answer, allow_set_relation_comp=True)


def prepare_worker() -> None:
    """Bound the memory of this process and silence its log."""
    import math_verify  # noqa: F401  its import, seconds on a busy disk, is no part of a comparison

    limit = psutil.Process().memory_info().vms + WORKER_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.CRITICAL)


def in_processes(
    function: Callable, tasks: list, seconds: float, label: str, prepare: Callable, *settings
) -> Iterator:
    """Results of `function` for the tasks, in order; the result of a task that failed or was stopped is an exception."""
    workers = min(len(os.sched_getaffinity(0)), len(tasks), 16)
    with ProcessPool(workers, initializer=prepare, initargs=settings, context=get_context("spawn")) as pool:
        results = pool.map(function, tasks, timeout=seconds).result()
        try:
            for _ in track(tasks, description=label, transient=True):
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
    if hard:
        results = in_processes(verified, hard, COMPARISON_SECONDS, label, prepare_worker)
        equal |= {pair: None if isinstance(x, BaseException) else bool(x) for pair, x in zip(hard, results)}
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
    rewards = in_processes(reward_of, samples, REWARD_SECONDS, "grading", load_reward, file)
    for row in rows:
        row["rewards"] = []
        for i, reward in enumerate(itertools.islice(rewards, len(row["responses"]))):
            if isinstance(reward, BaseException):
                where = f"prompt_id {row['prompt_id']}, response {i}"
                raise SystemExit(f"eval/evaluate.py: --grader {file}: reward_func failed at {where}: {reward!r}")
            row["rewards"].append(reward)
        row["correct"] = [reward > RIGHT_ABOVE for reward in row["rewards"]]

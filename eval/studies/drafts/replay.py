"""What drafts from siblings would have been worth, for responses that somebody has published."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
from lib.given import text_lines
from rich.progress import track

from openrlhf_sagc.decisions.drafts import Corpus

WORD = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]{1,3}|\s+|\w")
FIELDS = ("responses", "completions", "generations", "outputs", "samples")
LONGEST_LINE = 1 << 26  # characters
TENTHS = 10
ALONE, AGAIN = "siblings alone", "siblings and an earlier episode"


def read_groups(path: Path) -> list[list[list[int]]]:
    """The responses to each prompt in tokens: a line's list of texts, by words, or of lists of tokens.

    Raises:
        ValueError: the file is no such one; the message begins with the path and the line's number.
    """
    groups, words = [], {}
    for number, line in enumerate(text_lines(path, longest=LONGEST_LINE), 1):
        if not line.strip():
            continue
        where = f"{path} line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"{where} is no JSON: give a JSONL file with a prompt's responses in each line") from None
        fields = [row.get(name) for name in FIELDS] if isinstance(row, dict) else []
        responses = next((field for field in fields if field is not None), None)
        if not isinstance(responses, list) or len(responses) < 2:
            raise ValueError(f"{where} has no list of two responses or more under one of {', '.join(FIELDS)}")
        if len({*map(type, responses)}) > 1:
            raise ValueError(f"{where} has texts and lists of tokens: give responses of one kind")
        groups.append([_tokens(response, words, where) for response in responses])
    if not any(map(any, groups)):
        raise ValueError(f"{path} has no responses: give a JSONL file with a prompt's responses in each line")
    return groups


def _tokens(response: object, words: dict[str, int], where: str) -> list[int]:
    if isinstance(response, str):
        return [words.setdefault(word, len(words)) for word in WORD.findall(response)]
    if isinstance(response, list) and all(type(token) is int and 0 <= token < 2**31 for token in response):
        return response
    raise ValueError(f"{where} has a response that is neither a text nor a list of tokens")


def replay(groups: list[list[list[int]]], longest: int) -> pd.DataFrame:
    """A row for each response and scenario: its tokens, iterations, and tokens drafted and accepted.

    All of a group begin together, and each is drafted for from the others as far as they are at that iteration. With an
    earlier episode the second half of a group's responses is known as a whole before.
    """
    found = []
    for number, group in enumerate(track(groups, "replaying", transient=True)):
        half = (len(group) + 1) // 2
        for scenario, now, earlier in ((ALONE, group, []), (AGAIN, group[:half], group[half:])):
            rows = in_lockstep(now, earlier, longest)
            is_longest = np.argmax([row["tokens"] for row in rows])
            for place, row in enumerate(rows):
                found.append({"scenario": scenario, "group": number, "longest": place == is_longest, **row})
    return pd.DataFrame(found)


def in_lockstep(now: list[list[int]], earlier: list[list[int]], longest: int) -> list[dict[str, int]]:
    """What each response takes, whose tokens the policy has sampled already."""
    corpus = Corpus((), earlier)
    numbers = [corpus.begin() for _ in now]
    rows = [{"tokens": len(text), "iterations": 0, "drafted": 0, "accepted": 0} for text in now]
    places = [0] * len(now)
    most = sum(map(len, now + earlier)) + len(now + earlier)
    while running := [index for index, text in enumerate(now) if places[index] < len(text)]:
        steps = []
        corpus.index(most)
        for index in running:
            draft, left = corpus.draft(numbers[index], longest), now[index][places[index] :]
            right = 0
            while right < min(len(draft), len(left) - 1) and draft[right] == left[right]:
                right += 1
            steps.append((index, left[: right + 1]))
            rows[index]["iterations"] += 1
            rows[index]["drafted"] += len(draft)
            rows[index]["accepted"] += right
        for index, tokens in steps:
            corpus.extend(numbers[index], tokens)
            places[index] += len(tokens)
    return rows


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Tokens an iteration of all, of each group's longest and by tenths of length; drafted an iteration, and accepted."""
    found = []
    for scenario, own in rows[rows["tokens"] > 0].groupby("scenario", sort=False):
        tenths = ((own["tokens"].rank(method="first") - 1) * TENTHS // len(own)).astype(int)
        parts = {"all": own, "each group's longest": own[own["longest"]]}
        parts |= {f"tenth {tenth + 1} of length": own[tenths == tenth] for tenth in sorted({*tenths})}
        for part, mine in parts.items():
            sums = mine[["tokens", "iterations", "drafted", "accepted"]].sum()
            row = {"scenario": scenario, "responses": part, "tokens": mine["tokens"].mean()}
            row |= {"tokens an iteration": sums["tokens"] / sums["iterations"]}
            row |= {"drafted an iteration": sums["drafted"] / sums["iterations"]}
            found.append(row | {"accepted, %": 100 * sums["accepted"] / max(sums["drafted"], 1)})
    return pd.DataFrame(found)

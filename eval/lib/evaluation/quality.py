"""Quality of graded samples: pass@k, majority@k, lengths; intervals and tests over problems.

Suffixes of arrays: P problems, N samples of each.
"""

from functools import lru_cache, partial
from math import comb

import numpy as np
import pandas as pd
from scipy import stats

RESAMPLES = 9999
NEITHER_BETTER = ("truncated", "tokens mean")  # whether higher or lower


def powers_of_two(n: int) -> list[int]:
    """1, 2, 4, ... up to n, and n."""
    return sorted({2**i for i in range(n.bit_length())} | {n})


@lru_cache(maxsize=None)
def pass_at_k(n: int, right: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, have one of the c `right` ones: 1 - C(n-c, k) / C(n, k).

    Unbiased for the chance that one of k new samples is right (Chen et al., arXiv 2107.03374), as a product of factors
    in [0, 1] so that no binomial overflows.
    """
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - right + 1, n + 1))) if n - right >= k else 1.0


@lru_cache(maxsize=None)
def majority_at_k(right: int, wrong: tuple[int, ...], silent: int, k: int) -> float:
    """Expected share of right majority votes of k samples, drawn without replacement: exact, over all subsets.

    Args:
        right: samples with the right answer; wrong: samples with each wrong answer; silent: samples without an answer,
            which do not vote. The most frequent answer wins, a tie is settled by lot, no vote is wrong.
    """
    ways = 0
    for votes in range(1, min(right, k) + 1):
        rivals = [count for count in wrong if count >= votes]
        others = silent + sum(wrong) - sum(rivals)  # whose answers cannot reach so many votes
        table = {(0, 0): 1}  # (drawn, ties): ways to draw from the rivals so far, none above `votes`, `ties` level
        for count in rivals:
            new: dict[tuple[int, int], int] = {}
            for (drawn, ties), number in table.items():
                for more in range(min(votes, k - votes - drawn) + 1):
                    key = drawn + more, ties + (more == votes)
                    new[key] = new.get(key, 0) + number * comb(count, more)
            table = new
        rest = {drawn: comb(others, k - votes - drawn) for drawn, _ in table}
        shares = sum(number * rest[drawn] / (1 + ties) for (drawn, ties), number in table.items())
        ways += comb(right, votes) * shares
    return ways / comb(right + sum(wrong) + silent, k)


def majority_of(votes_N: list[int | None], k: int) -> float:
    """majority_at_k for samples with votes as lib/evaluation/grading.py gives them: 0 is right, None is no answer."""
    counts = pd.Series(votes_N, dtype="Int64").value_counts()
    wrong = tuple(sorted(int(count) for vote, count in counts.items() if vote != 0))
    return majority_at_k(int(counts.get(0, 0)), wrong, votes_N.count(None), k)


def figures_of_problems(rows: list[dict], ks: list[int]) -> pd.DataFrame:
    """A row a problem, a column a figure whose mean over problems is reported.

    `rows` are graded and have N samples each; `reward`, `maj@k`, `tokens` and `truncated` need them to have rewards,
    votes, tokens and truncated.
    """
    correct_PN = np.array([row["correct"] for row in rows], dtype=bool)
    n, right_P = correct_PN.shape[1], correct_PN.sum(axis=1)
    columns = {"reward": np.mean([row["rewards"] for row in rows], axis=1)} if "rewards" in rows[0] else {}
    columns |= {f"pass@{k}": [pass_at_k(n, int(right), k) for right in right_P] for k in ks}
    if "votes" in rows[0]:
        columns |= {f"maj@{k}": [majority_of(row["votes"], k) for row in rows] for k in ks if k > 1}
    columns["solved by most"] = (2 * right_P > n).astype(float)
    for key, name in {"truncated": "truncated", "tokens": "tokens mean"}.items():
        if all(key in row for row in rows):
            columns[name] = np.mean([row[key] for row in rows], axis=1, dtype=float)
    return pd.DataFrame(columns)


def bootstrap_interval(statistic, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % percentile intervals of statistic(data, axis=0), problems resampled; NaN for a single problem."""
    if len(data) < 2:
        missing = np.full(data.shape[1:], np.nan)
        return missing, missing
    result = stats.bootstrap(
        (data,), statistic, axis=0, vectorized=True, method="percentile", n_resamples=RESAMPLES, batch=100, rng=0
    )
    return result.confidence_interval.low, result.confidence_interval.high


def pooled_quantile(tokens_PN: np.ndarray, q: float, problems: np.ndarray, axis: int = -1) -> np.ndarray:
    """Quantile of all lengths of the problems [..., P'], whose numbers are along the last axis: [...]."""
    return np.quantile(tokens_PN[problems].reshape(*problems.shape[:-1], -1), q, axis=-1)


def plain(entry: dict) -> dict[str, float | None]:
    """For JSON, which has no NaN."""
    return {key: None if np.isnan(x) else float(x) for key, x in entry.items()}


def summary(rows: list[dict], figures: pd.DataFrame) -> dict[str, dict[str, float]]:
    """{figure: {value, low, high}} with 95 % intervals: means of `figures`, median and 90 % quantile of all lengths.

    The longest response, `tokens max`, has no interval: none resampled is longer.
    """
    low, high = bootstrap_interval(np.mean, figures.to_numpy())
    result = {
        name: {"value": value, "low": low[i], "high": high[i]}
        for i, (name, value) in enumerate(figures.mean().items())
    }
    if "tokens mean" in figures:
        tokens_PN = np.array([row["tokens"] for row in rows])
        for name, q in {"tokens median": 0.5, "tokens p90": 0.9}.items():
            quantile = partial(pooled_quantile, tokens_PN, q)
            low, high = bootstrap_interval(quantile, np.arange(len(rows)))
            result[name] = {"value": np.quantile(tokens_PN, q), "low": low, "high": high}
        result["tokens max"] = {"value": tokens_PN.max()}
    return {name: plain(entry) for name, entry in result.items()}


def compare(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, dict[str, float]]:
    """{figure: {difference, low, high, p_value, wins, ties, losses}} of the second model less the first, by problem.

    The interval is a paired bootstrap (95 %), the p-value that of a two-sided paired permutation test of the mean;
    both are None for a single problem. Figures that are neither better nor worse when higher have no wins.
    """
    names = [name for name in first if name in second]
    a, b = first[names].to_numpy(), second[names].to_numpy()
    low, high = bootstrap_interval(np.mean, b - a)
    mean_difference = lambda x, y, axis: np.mean(y - x, axis=axis)  # noqa: E731
    settings = {"permutation_type": "samples", "vectorized": True, "n_resamples": RESAMPLES, "batch": 100, "rng": 0}
    p_values = np.full(len(names), np.nan)
    if len(a) > 1:
        p_values = stats.permutation_test((a, b), mean_difference, axis=0, **settings).pvalue
    result = {}
    for i, name in enumerate(names):
        difference = b[:, i] - a[:, i]
        result[name] = {"difference": difference.mean(), "low": low[i], "high": high[i], "p_value": p_values[i]}
        result[name] = plain(result[name])
        if name not in NEITHER_BETTER:
            counts = (difference > 1e-12).sum(), (abs(difference) <= 1e-12).sum(), (difference < -1e-12).sum()
            result[name] |= dict(zip(("wins", "ties", "losses"), map(int, counts)))
    return result

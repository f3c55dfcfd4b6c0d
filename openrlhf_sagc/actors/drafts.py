"""What drafts tokens in a vLLM engine: other responses to the same prompt, of this step and of earlier ones.

vLLM verifies each draft and samples anew where it is wrong, so that responses are distributed as without drafts.
"""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_sagc.decisions.draft_budget import DraftBudget
from openrlhf_sagc.decisions.drafts import Corpus

MOST_BYTES = 256 * 2**20  # of responses and where their tokens are, in an engine
TAIL = 16  # last tokens by which a running response is known
IMMINENT = 1e9  # stands for the tokens of a response of which nothing is known


@dataclass(eq=False)
class _Row:
    """A request that runs: its prompt, and the number of its response in the corpus of that."""

    prompt: np.ndarray
    corpus: Corpus
    number: int


class Drafts:
    """A proposer of vLLM's `custom_class`, one for each engine.

    vLLM names no request to it, so that it knows them by their tokens. The engine's actor calls `remember` and `counts` by
    vLLM's `collective_rpc`, as `remember_responses` and `draft_counts` of OpenRLHF's extension of vLLM's workers.
    """

    def __init__(self, vllm_config: Any) -> None:
        from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

        self._longest = vllm_config.speculative_config.num_speculative_tokens
        self._most_tokens = vllm_config.model_config.max_model_len
        self._budget = DraftBudget(self._longest)
        self._corpora: OrderedDict[bytes, Corpus] = OrderedDict()  # by prompt, that used last at the end
        self._rows: list[_Row | None] = []  # by their places in vLLM's batch
        self._drafted = 0  # tokens that the iteration which runs verifies
        self._since = 0.0  # on the clock
        self._counts = dict.fromkeys(("tokens", "iterations", "drafted", "accepted"), 0)
        WorkerWrap.remember_responses = lambda worker, responses: self.remember(responses)
        WorkerWrap.draft_counts = lambda worker: self.counts()
        if vllm_config.device_config.device_type == "cpu":
            from openrlhf_sagc.actors.draft_repair import repair

            repair()

    def load_model(self, *args, **kwargs) -> None:
        """There is none."""

    def remember(self, responses: list[tuple[bytes, list[bytes]]]) -> None:
        """Earlier responses to prompts that come next; all are tokens as bytes of int32."""
        for prompt, earlier in responses:
            tokens = [np.frombuffer(text, np.int32).tolist() for text in earlier]
            self._corpora[prompt] = Corpus(np.frombuffer(prompt, np.int32).tolist(), tokens)
            self._corpora.move_to_end(prompt)
        self._forget()

    def counts(self) -> dict[str, float]:
        """Since the engine's start: tokens and iterations of its requests, drafted and accepted tokens; and MiB now."""
        return {**self._counts, "mib": sum(corpus.size for corpus in self._corpora.values()) / 2**20}

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        """The draft of each request.

        Args:
            sampled_token_ids: a list of each request's last tokens; empty where its prompt is not read to the end.
            num_tokens_no_spec: [requests], tokens of each with its prompt.
            token_ids_cpu: [requests, tokens], of which each has so many.
            slot_mappings: not used.
        """
        news = self._update(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        rows = [place for place, sampled in enumerate(sampled_token_ids) if len(sampled)]
        tokens = sum(map(len, sampled_token_ids))
        now = time.perf_counter()
        if not news and len(rows) == len(sampled_token_ids):  # else prompts were read, too
            self._budget.note(tokens, 1000 * (now - self._since))
        self._since = now
        for name, value in zip(self._counts, (tokens, len(rows), self._drafted, tokens - len(rows))):
            self._counts[name] += value
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        left = self._budget.choose(len(rows)) if rows else 0
        for place in sorted(rows, key=self._to_come, reverse=True) if left else ():
            row, room = self._rows[place], self._most_tokens - 1 - int(num_tokens_no_spec[place])
            if left <= 0 or row is None:
                break
            drafts[place] = row.corpus.draft(row.number, max(min(self._longest, left, room), 0))
            left -= len(drafts[place])
        self._drafted = sum(map(len, drafts))
        return drafts

    def _to_come(self, place: int) -> float:
        """Tokens that the response is expected to need yet, by the longest earlier one."""
        row = self._rows[place]
        return (row.corpus.longest or IMMINENT) - row.corpus.length(row.number) if row else 0.0

    def _update(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu) -> int:
        """Take the requests' last tokens, and say how many requests are new."""
        before, news = self._rows, 0
        self._rows = [None] * len(sampled_token_ids)
        by_length: dict[int, list[_Row]] = {}
        for row in before:
            if row is not None:
                by_length.setdefault(len(row.prompt) + row.corpus.length(row.number), []).append(row)
        for place, sampled in enumerate(sampled_token_ids):
            tokens = token_ids_cpu[place, : num_tokens_no_spec[place]]
            known = tokens[: len(tokens) - len(sampled)]
            rows = by_length.get(len(known), [])
            here = before[place] if place < len(before) else None  # where most stay
            row = next((row for row in sorted(rows, key=lambda row: row is not here) if _is_of(row, known)), None)
            if row is None:
                if not len(sampled):
                    continue
                news += 1
                row = self._begin(known.copy())
            else:
                by_length[len(known)].remove(row)
            row.corpus.extend(row.number, np.asarray(sampled).tolist())
            self._rows[place] = row
        if news:
            self._forget()
        return news

    def _begin(self, prompt: np.ndarray) -> _Row:
        key = prompt.astype(np.int32).tobytes()
        corpus = self._corpora.get(key)
        if corpus is None:
            corpus = self._corpora[key] = Corpus(prompt.tolist())
        self._corpora.move_to_end(key)
        return _Row(prompt, corpus, corpus.begin())

    def _forget(self) -> None:
        """Drop the corpora that were used least recently, as far as all are too large."""
        total = sum(corpus.size for corpus in self._corpora.values())
        while total > MOST_BYTES and len(self._corpora) > 1:
            total -= self._corpora.popitem(last=False)[1].size


def _is_of(row: _Row, tokens: np.ndarray) -> bool:
    """Whether these tokens are those of the request so far."""
    tail = row.corpus.tail(row.number, TAIL)
    begins = np.array_equal(tokens[: len(row.prompt)], row.prompt)
    return begins and tokens[len(tokens) - len(tail) :].tolist() == list(tail)

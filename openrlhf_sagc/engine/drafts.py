"""In vLLM's worker processes: other responses to the same prompt, of this step and of earlier ones, draft tokens.

vLLM verifies each draft and samples anew where it is wrong, so that responses are distributed as without drafts. Its CPU
backend samples another distribution there (vllm #55005), which `repair` mends.
"""

import copy
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from openrlhf_sagc.decisions.draft_budget import DraftBudget
from openrlhf_sagc.decisions.drafts import Corpus

MOST_BYTES = 256 * 2**20  # of responses and where their tokens are, in a worker of an engine
MOST_RESPONSES, KEPT_RESPONSES = 64, 8  # of a prompt that comes again and again untold, as in evaluations
TAIL = 16  # last tokens by which a response is known
LEFT = 256  # requests that have left the batch last, of which vLLM may have preempted some
MOST_INDEXED = 5000  # tokens of responses that an iteration looks through, some milliseconds
UNKNOWN = 1e9  # stands for the tokens of a response of which nothing is known


@dataclass(eq=False)
class _Row:
    """A request that runs: its prompt, and the number of its response in the corpus of that."""

    prompt: np.ndarray
    corpus: Corpus
    number: int

    @property
    def tokens(self) -> int:
        """Of prompt and response."""
        return len(self.prompt) + self.corpus.length(self.number)

    @property
    def to_come(self) -> float:
        """Tokens that the response is expected to need yet, by the longest earlier one."""
        return (self.corpus.longest or UNKNOWN) - self.corpus.length(self.number)

    def is_of(self, tokens: np.ndarray) -> bool:
        """Whether these, as many, are the tokens of the request so far."""
        tail = self.corpus.tail(self.number, TAIL)
        begins = np.array_equal(tokens[: len(self.prompt)], self.prompt)
        return begins and tokens[len(tokens) - len(tail) :].tolist() == tail


class Drafts:
    """A proposer of vLLM's `custom_class`, one for each worker of an engine.

    vLLM names no request to it, so that it knows them by their tokens. The engine's actor calls `remember` and `counts` by
    vLLM's `collective_rpc`, as `remember_responses` and `draft_counts` of OpenRLHF's extension of vLLM's workers.
    """

    def __init__(self, vllm_config: Any) -> None:
        from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap

        config = vllm_config.speculative_config
        # vLLM asks for no draft where one of this many tokens fits no more, for any of the requests: all would begin anew.
        config.draft_model_config = copy.copy(config.draft_model_config)
        config.draft_model_config.max_model_len += config.num_speculative_tokens + 1
        self._longest = config.num_speculative_tokens
        self._most_tokens = vllm_config.model_config.max_model_len
        self._budget = DraftBudget(self._longest)
        self._corpora: OrderedDict[bytes, Corpus] = OrderedDict()  # by prompt, that used last at the end
        self._rows: list[_Row | None] = []  # by their places in vLLM's batch
        self._left: deque[_Row] = deque(maxlen=LEFT)
        self._drafted = 0  # tokens that the iteration which runs verifies
        self._since = 0.0  # on the clock
        self._counts = dict.fromkeys(("tokens", "iterations", "drafted", "accepted"), 0)
        WorkerWrap.remember_responses = lambda worker, responses: self.remember(responses)
        WorkerWrap.draft_counts = lambda worker: self.counts()
        if vllm_config.device_config.device_type == "cpu":
            repair()

    def load_model(self, *args, **kwargs) -> None:
        """There is none."""

    def remember(self, responses: list[tuple[bytes, list[bytes]]]) -> None:
        """Earlier responses to prompts that come next, of which none runs; all are tokens as bytes of int32."""
        for prompt, earlier in responses:
            if not self._runs(self._corpora.get(prompt)):
                texts = [np.frombuffer(text, np.int32).tolist() for text in earlier]
                self._corpora[prompt] = Corpus(np.frombuffer(prompt, np.int32).tolist(), texts)
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
        begun = self._update(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        places = [place for place, sampled in enumerate(sampled_token_ids) if len(sampled)]
        tokens, now = sum(map(len, sampled_token_ids)), time.perf_counter()
        if not begun and len(places) == len(sampled_token_ids):  # else prompts were read, too
            self._budget.note(tokens, 1000 * (now - self._since))
        self._since = now
        for name, value in zip(self._counts, (tokens, len(places), self._drafted, tokens - len(places))):
            self._counts[name] += value
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        left, unseen, indexing = self._budget.choose(len(places)) if places else 0, MOST_INDEXED, 0.0
        rows = [(place, row) for place in places if (row := self._rows[place])] if left else []
        for place, row in sorted(rows, key=lambda pair: pair[1].to_come, reverse=True):
            room = self._most_tokens - 1 - int(num_tokens_no_spec[place])
            start = time.perf_counter()
            unseen -= row.corpus.index(unseen)
            indexing += time.perf_counter() - start
            drafts[place] = row.corpus.draft(row.number, max(min(self._longest, left, room), 0))
            left -= len(drafts[place])
            if left <= 0:
                break
        self._since += indexing  # which the budget is not to blame for
        self._drafted = sum(map(len, drafts))
        return drafts

    def _update(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu) -> int:
        """Take the requests' last tokens, and say how many requests have begun."""
        before, self._rows = self._rows, [None] * len(sampled_token_ids)
        known = [
            token_ids_cpu[place, : num_tokens_no_spec[place] - len(new)] for place, new in enumerate(sampled_token_ids)
        ]
        for place, (row, tokens) in enumerate(zip(before, known)):
            if row is not None and row.tokens == len(tokens) and row.is_of(tokens):  # most stay in their places
                self._rows[place], before[place] = row, None
        moved, begun = [row for row in before if row is not None], 0
        for place, (tokens, sampled) in enumerate(zip(known, sampled_token_ids)):
            row = self._rows[place] or _taken(moved, tokens)
            if row is None and len(sampled):
                row = _taken(self._left, tokens) or self._begin(tokens.copy())  # vLLM had preempted it, or it is new
                begun += 1
            if row is not None:
                row.corpus.extend(row.number, np.asarray(sampled).tolist())
                self._rows[place] = row
        self._left.extend(moved)
        if begun:
            self._forget()
        return begun

    def _begin(self, prompt: np.ndarray) -> _Row:
        key = prompt.astype(np.int32).tobytes()
        corpus = self._corpora.get(key)
        if corpus is None or corpus.responses >= MOST_RESPONSES and not self._runs(corpus):
            corpus = Corpus(prompt.tolist(), corpus.latest(KEPT_RESPONSES) if corpus else ())
            self._corpora[key] = corpus
        self._corpora.move_to_end(key)
        return _Row(prompt, corpus, corpus.begin())

    def _runs(self, corpus: Corpus | None) -> bool:
        return corpus is not None and any(row and row.corpus is corpus for row in self._rows)

    def _forget(self) -> None:
        """Drop the corpora that were used least recently and of which no response runs, as far as all are too large."""
        total = sum(corpus.size for corpus in self._corpora.values())
        for prompt, corpus in [*self._corpora.items()] if total > MOST_BYTES else ():
            if total > MOST_BYTES and not self._runs(corpus):
                total -= self._corpora.pop(prompt).size
        kept = set(map(id, self._corpora.values()))  # rows that have left would keep the others in memory
        self._left = deque((row for row in self._left if id(row.corpus) in kept), LEFT)


def _taken(rows: list[_Row] | deque[_Row], tokens: np.ndarray) -> _Row | None:
    """The request that has these tokens so far, which is among the rows no more; None if there is none."""
    row = next((row for row in rows if row.tokens == len(tokens) and row.is_of(tokens)), None)
    if row is not None:
        rows.remove(row)
    return row


def repair() -> None:
    """Run in an engine on a CPU, before its first draft; a vLLM whose kernel writes as it should is left as it is."""
    from vllm.utils import cpu_triton_utils

    kernel = cpu_triton_utils.expand_kernel
    probe, ones = torch.zeros(2), torch.ones(1)
    kernel[(1,)](probe, ones, torch.tensor([2], dtype=torch.int32), 0, 1, MAX_NUM_TOKENS=2)
    if not bool((probe == 1).all()):
        kernel.func = expand


def expand(output, input_val, cu_num_tokens, replace_from, replace_to, MAX_NUM_TOKENS=None) -> None:
    """The value of each request for each of its draft tokens, as vLLM's `expand_kernel` writes it to `output`.

    vLLM's own for CPUs converts `output` to int64 and writes to that copy, so that temperature and top-p of drafted
    tokens are what was in memory before.

    Args:
        output: [tokens], of all requests one behind the other.
        input_val: [requests].
        cu_num_tokens: [requests], tokens of a request and all before it.
        replace_from, replace_to: a value, and what is written in its place.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    values = torch.repeat_interleave(input_val, counts.long())
    output[: len(values)] = torch.where(values == replace_from, replace_to, values).to(output.dtype)

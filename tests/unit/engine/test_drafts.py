"""The proposer as vLLM calls it: a batch of rows, of which none has a name."""

import random
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from vllm.utils import cpu_triton_utils

import openrlhf_sagc.engine.drafts as module
from openrlhf_sagc.engine.drafts import Drafts, expand, repair

LONGEST, MOST_TOKENS = 4, 64


@pytest.fixture
def drafts(monkeypatch):
    for name in ("remember_responses", "draft_counts"):
        monkeypatch.setattr(WorkerWrap, name, None, raising=False)
    model = SimpleNamespace(max_model_len=MOST_TOKENS)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=LONGEST, draft_model_config=model),
        model_config=model,
        device_config=SimpleNamespace(device_type="cuda"),
    )
    made = Drafts(config)
    assert config.speculative_config.draft_model_config.max_model_len == MOST_TOKENS + LONGEST + 1
    assert model.max_model_len == MOST_TOKENS
    monkeypatch.setattr(made._budget, "choose", lambda running: running * LONGEST)
    return made


class Batch:
    """vLLM's: rows of requests, of which those that end are filled up from behind."""

    def __init__(self, drafts):
        self.drafts, self.rows = drafts, []

    def step(self, *sampled):
        """Each row gets these tokens; the drafts of all."""
        for row, tokens in zip(self.rows, sampled, strict=True):
            row += tokens
        tokens = np.zeros((len(self.rows), MOST_TOKENS), np.int32)
        for place, row in enumerate(self.rows):
            tokens[place, : len(row)] = row
        return self.drafts.propose([list(each) for each in sampled], np.array([*map(len, self.rows)]), tokens)


def as_bytes(*tokens):
    return np.array(tokens, np.int32).tobytes()


def test_siblings_draft_for_each_other_and_for_no_other_prompt(drafts):
    batch = Batch(drafts)
    batch.rows = [[1, 2], [1, 2], [1, 3]]
    assert batch.step([5], [5], [5]) == [[], [], []]
    batch.step([6, 7, 8], [9], [9])
    assert batch.step([4], [4], [4])[2] == []
    batch.rows += [[1, 2]]
    assert batch.step([4], [4], [4], [5])[3] == [9, 4, 4]


def test_what_came_before_is_remembered(drafts):
    WorkerWrap.remember_responses(None, [(as_bytes(1, 2), [as_bytes(5, 6, 7, 8, 9, 4)])])
    batch = Batch(drafts)
    batch.rows = [[1, 2], [2, 2]]
    assert batch.step([5], [5]) == [[6, 7, 8, 9], []]
    later = [(as_bytes(1, 2), [as_bytes(5, 3)])]
    WorkerWrap.remember_responses(None, later)  # while one runs, which draws on what it began with
    batch.rows += [[1, 2]]
    assert batch.step([6], [6], [5])[2] == [6, 7, 8, 9]
    batch.rows = [[3, 3]]
    batch.step([5])
    WorkerWrap.remember_responses(None, later)  # of the step before, and no older ones
    batch.rows = [[1, 2]]
    assert batch.step([5]) == [[3]]


def test_a_request_that_vllm_had_preempted_is_known(drafts):
    batch = Batch(drafts)
    batch.rows = [[1, 2], [1, 2]]
    batch.step([5, 6, 7], [5])
    preempted = batch.rows.pop()
    batch.step([8, 9])
    batch.rows.append(preempted)
    assert batch.step([4], [6])[1] == [7, 8, 9, 4]
    assert len(drafts._corpora) == 1


def test_responses_to_a_prompt_that_comes_untold_are_not_kept_for_ever(drafts, monkeypatch):
    monkeypatch.setattr(module, "MOST_RESPONSES", 6)
    batch = Batch(drafts)
    for turn in range(10):
        batch.rows = [[1, 2], [1, 2]]
        batch.step([turn + 5], [turn + 5])
        batch.rows = []
        batch.step()
    (corpus,) = drafts._corpora.values()
    assert corpus.responses <= module.KEPT_RESPONSES + 2


def test_a_corpus_of_running_responses_stays(drafts, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 0)
    batch = Batch(drafts)
    batch.rows = [[1, 2]]
    batch.step([5, 6, 7])
    batch.rows += [[3, 4]]
    batch.step([8], [5])
    assert len(drafts._corpora) == 2
    batch.rows = [[1, 2], *batch.rows[1:]]
    batch.step([5], [6])
    assert [*drafts._corpora] == [as_bytes(3, 4), as_bytes(1, 2)]


def test_a_corpus_that_is_dropped_stays_in_no_request_that_has_left(drafts, monkeypatch):
    batch = Batch(drafts)
    batch.rows = [[1, 2]]
    batch.step([5, 6, 7])
    corpus = weakref.ref(drafts._corpora[as_bytes(1, 2)])
    batch.rows = []
    batch.step()
    assert corpus() is not None
    monkeypatch.setattr(module, "MOST_BYTES", 0)
    batch.rows = [[3, 4]]
    batch.step([5])
    assert corpus() is None


def test_rows_that_move_are_known(drafts):
    batch = Batch(drafts)
    batch.rows = [[1], [2], [3]]
    batch.step([4], [4], [4])
    for _ in range(4):
        batch.step([7, 8], [8, 9], [9, 7])
    batch.rows = [batch.rows[2], batch.rows[1]]
    assert batch.step([9], [8]) == [[7, 9], [9, 8]]
    assert drafts.counts()["iterations"] == 3 + 12 + 2


def test_a_request_that_reads_its_prompt_stays_known(drafts):
    batch = Batch(drafts)
    batch.rows = [[1, 2]]
    batch.step([5, 6, 5, 6])
    assert batch.step([]) == [[]]
    assert batch.step([5]) == [[6, 5]]
    assert len(drafts._corpora) == 1


def test_no_draft_reaches_beyond_the_models_length(drafts):
    batch = Batch(drafts)
    batch.rows = [[1, 2] * (MOST_TOKENS // 2 - 2)]
    assert batch.step([1]) == [[]]
    assert batch.step([2, 1]) == [[]]
    WorkerWrap.remember_responses(None, [(as_bytes(*[1] * 60), [as_bytes(5, 5, 5, 5, 5, 5)])])
    batch.rows = [[1] * 60]
    assert batch.step([5]) == [[5, 5]]
    assert batch.step([5]) == [[5]]
    assert batch.step([5]) == [[]]


def test_a_small_budget_is_for_those_expected_to_be_long(drafts, monkeypatch):
    earlier = [as_bytes(*[5] * length) for length in (9, 30)]
    WorkerWrap.remember_responses(None, [(as_bytes(1), earlier[:1]), (as_bytes(2), earlier)])
    monkeypatch.setattr(drafts._budget, "choose", lambda running: LONGEST)
    batch = Batch(drafts)
    batch.rows = [[1], [2], [1]]
    assert batch.step([5], [5], [5]) == [[], [5] * LONGEST, []]


def test_counts(drafts):
    batch = Batch(drafts)
    batch.rows = [[1]]
    batch.step([5])
    batch.step([6])
    batch.step([5])
    assert batch.step([6, 5]) == [[6, 5]]
    assert batch.step([6]) == [[5, 6]]
    counts = WorkerWrap.draft_counts(None)
    assert counts["mib"] > 0
    # [6, 5] was drafted, of which nothing came; the last draft is not verified yet.
    assert {**counts, "mib": 0} == {"tokens": 6, "iterations": 5, "drafted": 2, "accepted": 1, "mib": 0}


def test_memory_is_bounded_and_old_prompts_go_first(drafts, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 20_000)
    for prompt in range(40):
        drafts.remember([(as_bytes(prompt), [as_bytes(*range(100))])])
    assert sum(corpus.size for corpus in drafts._corpora.values()) <= 20_000
    assert list(drafts._corpora)[-1] == as_bytes(39)
    assert len(drafts._corpora) > 5


def test_only_iterations_without_prompts_are_timed(drafts, monkeypatch):
    noted = []
    monkeypatch.setattr(drafts._budget, "note", lambda tokens, ms: noted.append(tokens))
    batch = Batch(drafts)
    batch.rows = [[1], [2]]
    batch.step([5], [5])
    batch.step([5], [])
    batch.step([5], [5])
    batch.rows += [[3]]
    batch.step([5], [5], [5])
    batch.step([5], [5], [5])
    assert noted == [2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_each_row_has_its_own_text_whatever_vllm_does_to_the_batch(drafts, seed):
    chance, batch = random.Random(seed), Batch(drafts)
    for _ in range(60):
        for _ in range(chance.randint(0, 2)):
            batch.rows.append([chance.randint(1, 3)] * chance.randint(1, 2))
        chance.shuffle(batch.rows)
        batch.rows = [row for row in batch.rows if len(row) < MOST_TOKENS - 8 and chance.random() > 0.05]
        fresh = [len(row) < 3 and max(row) < 4 for row in batch.rows]
        sampled = [
            [chance.randint(5, 6) for _ in range(1 if new else chance.randint(0, 3))]
            for new, row in zip(fresh, batch.rows)
        ]
        batch.step(*sampled)
        for row, known in zip(batch.rows, drafts._rows):
            if known is not None:
                assert list(known.prompt) == [token for token in row if token < 4]
                assert known.corpus.length(known.number) == len(row) - len(known.prompt)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_each_token_gets_the_value_of_its_request(dtype):
    values, ends = torch.tensor([0, 5, 7], dtype=dtype), torch.tensor([2, 2, 5], dtype=torch.int32)
    output = torch.full((5,), 99, dtype=dtype)
    expand(output, values, ends, 0, 1, MAX_NUM_TOKENS=32)
    assert output.tolist() == [1, 1, 7, 7, 7]


def test_only_a_kernel_that_is_wrong_is_replaced(monkeypatch):
    calls = []

    def right(output, *args, **kwargs):
        calls.append(output)
        expand(output, *args, **kwargs)

    monkeypatch.setattr(cpu_triton_utils.expand_kernel, "func", right)
    repair()
    assert calls and cpu_triton_utils.expand_kernel.func is right
    monkeypatch.setattr(cpu_triton_utils.expand_kernel, "func", lambda *args, **kwargs: None)
    repair()
    assert cpu_triton_utils.expand_kernel.func is expand

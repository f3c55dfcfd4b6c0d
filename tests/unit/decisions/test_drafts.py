"""Drafts from the other responses to a prompt."""

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.decisions.drafts import Corpus

TOKENS = st.lists(st.integers(0, 5), max_size=60)


def drafted(corpus, number, most):
    corpus.index(10**6)
    return corpus.draft(number, most)


def begun(corpus, tokens):
    number = corpus.begin()
    corpus.extend(number, tokens)
    return number


def test_a_response_is_drafted_from_an_earlier_one():
    corpus = Corpus([1, 2], [[5, 6, 7, 8, 9]])
    assert drafted(corpus, begun(corpus, [5, 6]), 8) == [7, 8, 9]
    assert drafted(corpus, begun(corpus, [5, 6]), 2) == [7, 8]


def test_the_first_token_follows_the_prompt():
    corpus = Corpus([1, 2], [[5, 6, 7]])
    assert drafted(corpus, corpus.begin(), 8) == [5, 6, 7]


def test_the_longest_common_text_counts():
    corpus = Corpus([], [[1, 2, 3, 4], [9, 2, 3, 5], [9, 2, 3, 5]])
    assert drafted(corpus, begun(corpus, [1, 2, 3]), 8) == [4]


def test_of_equally_long_ones_most_decide_token_by_token():
    corpus = Corpus([], [[2, 3, 4, 6], [2, 3, 5, 7], [2, 3, 5, 8], [2, 3, 5, 8]])
    assert drafted(corpus, begun(corpus, [2, 3]), 8) == [5, 8]


def test_where_too_few_agree_nothing_is_drafted():
    corpus = Corpus([], [[2, 3, token] for token in range(10, 14)])
    assert drafted(corpus, begun(corpus, [2, 3]), 8) == []


def test_a_sibling_that_runs_helps_as_far_as_it_is():
    corpus = Corpus([])
    ahead, behind = begun(corpus, [1, 2, 3, 4]), begun(corpus, [1, 2])
    assert drafted(corpus, behind, 8) == [3, 4]
    assert drafted(corpus, ahead, 8) == []
    corpus.extend(ahead, [5])
    corpus.extend(behind, [3])
    assert drafted(corpus, behind, 8) == [4, 5]


def test_a_response_repeats_itself():
    corpus = Corpus([])
    assert drafted(corpus, begun(corpus, [1, 2, 3, 1, 2]), 3) == [3, 1, 2]


@given(st.lists(TOKENS, max_size=4), st.lists(st.tuples(st.integers(0, 2), TOKENS), max_size=12))
def test_drafts_are_what_some_text_went_on_with(earlier, turns):
    corpus = Corpus([7, 8], earlier)
    numbers, texts = [corpus.begin() for _ in range(3)], [[], [], []]
    for place, tokens in turns:
        draft = drafted(corpus, numbers[place], 4)
        assert len(draft) <= 4
        end = ([7, 8] + texts[place])[-2:]
        for length in range(1, len(draft) + 1):
            wanted = end + draft[:length]
            assert any(
                wanted == text[start : start + len(wanted)]
                for text in ([7, 8] + text for text in earlier + texts)
                for start in range(len(text))
            )
        corpus.extend(numbers[place], tokens)
        texts[place] += tokens
    assert [corpus.length(number) for number in numbers] == list(map(len, texts))
    assert [corpus.tail(number, 3) for number in numbers] == [text[-3:] for text in texts]


def test_size_and_longest():
    few, many = Corpus([1, 2], [[3, 4]]), Corpus([1, 2], [[3, 4], list(range(100))])
    drafted(few, few.begin(), 1), drafted(many, many.begin(), 1)
    assert many.size > few.size > 0
    assert (few.longest, many.longest, Corpus([1]).longest) == (2, 100, 0)


def test_places_are_noted_a_few_at_a_time_each_once():
    corpus = Corpus([1, 2], [list(range(10, 20)), list(range(30, 40))])
    number = begun(corpus, [30, 31])
    assert corpus.index(8) == 8 and corpus.draft(number, 2) == []
    assert corpus.index(8) == 8 and corpus.index(100) == 9  # a place behind each token and the prompt's
    assert corpus.draft(number, 2) == [32, 33] and corpus.index(100) == 0


def test_memory_is_what_is_said():
    chance = random.Random(0)
    for texts in ([chance.sample(range(10**5), 4000)] * 4, [chance.choices(range(10**5), k=4000) for _ in range(4)]):
        tracemalloc.start()
        corpus = Corpus([1, 2], texts)
        corpus.index(10**6)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert 0.7 * used < corpus.size < 1.6 * used


def test_the_latest_responses():
    corpus = Corpus([1, 2], [[3], [4, 5]])
    corpus.extend(corpus.begin(), [6])
    assert corpus.responses == 3 and corpus.latest(2) == [[4, 5], [6]]

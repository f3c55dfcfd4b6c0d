"""Drafts of tokens from what other responses to the same prompt went on with."""

from array import array
from collections import Counter
from collections.abc import Sequence

PAIR = 2  # tokens that a place must have in common with the end of a response, to be looked at
CONTEXT = 8  # of further ones that are compared
NEWEST = 48  # places that are looked at
LEAST_SHARE = 0.3  # of the places that must go on with a token
TOKEN_BYTES, PAIR_BYTES = 12, 140  # measured: of a token, and of another pair


class Corpus:
    """The responses to one prompt: those of earlier steps, and those that run, as far as they are.

    Args:
        prompt: the tokens of the prompt, whose last ones are the context of a response's first.
        responses: whole earlier responses, in tokens.
    """

    def __init__(self, prompt: Sequence[int], responses: Sequence[Sequence[int]] = ()) -> None:
        self._before = array("i", prompt[-PAIR:])
        self._texts: list[array[int]] = []
        self._indexed: list[int] = []  # tokens of each text whose places are known
        self._last: dict[tuple[int, int], tuple[int, int]] = {}  # by pair of tokens: (text, place behind it) seen last
        self._previous: list[dict[int, tuple[int, int]]] = []  # by text and place: where the same pair was seen before
        self.longest = max(map(len, responses), default=0)  # of the earlier ones, in tokens; 0 if there is none
        for response in responses:
            self.extend(self.begin(), response)

    def begin(self) -> int:
        """The number of a response that begins."""
        self._texts.append(array("i", self._before))
        self._indexed.append(0)
        self._previous.append({})
        return len(self._texts) - 1

    def extend(self, number: int, tokens: Sequence[int]) -> None:
        """The response goes on with these tokens."""
        self._texts[number].extend(tokens)

    def length(self, number: int) -> int:
        """Tokens that the response has so far."""
        return len(self._texts[number]) - len(self._before)

    def tail(self, number: int, most: int) -> array:
        """Its last tokens, at most so many."""
        text = self._texts[number]
        return text[max(len(text) - most, len(self._before)) :]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return TOKEN_BYTES * sum(map(len, self._texts)) + PAIR_BYTES * len(self._last)

    def draft(self, number: int, most: int) -> list[int]:
        """Up to `most` tokens that the response may go on with: what most of the places do that are most like its end."""
        self._index()
        drafted: list[int] = []
        places = self._places(number)
        while places and len(drafted) < most:
            following = Counter(self._texts[text][place] for text, place in places)
            token, count = following.most_common(1)[0]
            if count < LEAST_SHARE * len(places):
                break
            drafted.append(token)
            places = [
                (text, place + 1)
                for text, place in places
                if self._texts[text][place] == token and place + 1 < len(self._texts[text])
            ]
        return drafted

    def _index(self) -> None:
        for number, text in enumerate(self._texts):
            previous = self._previous[number]
            for place in range(max(self._indexed[number] + 1, PAIR), len(text) + 1):
                pair = (text[place - 2], text[place - 1])
                if pair in self._last:
                    previous[place] = self._last[pair]
                self._last[pair] = (number, place)
            self._indexed[number] = len(text)

    def _places(self, number: int) -> list[tuple[int, int]]:
        """(text, place) of those whose longest context is that of the response's end, and which go on."""
        own = self._texts[number]
        end, best = len(own), -1
        places: list[tuple[int, int]] = []
        at = self._last.get((own[-2], own[-1])) if end >= PAIR else None
        for _ in range(NEWEST):
            if at is None:
                break
            text, place = self._texts[at[0]], at[1]
            if place < len(text):
                most = min(CONTEXT, place - PAIR, end - PAIR)
                common = 0
                while common < most and text[place - PAIR - 1 - common] == own[end - PAIR - 1 - common]:
                    common += 1
                if common > best:
                    best, places = common, []
                if common == best:
                    places.append(at)
            at = self._previous[at[0]].get(at[1])
        return places

"""Drafts of tokens from what other responses to the same prompt went on with."""

from array import array
from collections import Counter
from collections.abc import Sequence

PAIR = 2  # tokens that a place must have in common with the end of a response, to be looked at
CONTEXT = 8  # of further ones that are compared
NEWEST = 48  # places that are looked at
LEAST_SHARE = 0.3  # of the places that must go on with a token
TOKEN_BYTES, PAIR_BYTES = 13, 110  # of memory: of a token, and of another pair of tokens
SHIFT = 32  # bits of a place in a text; of a token in a pair
NONE = -1


class Corpus:
    """The responses to one prompt: those of earlier steps, and those that run, as far as they are.

    Args:
        prompt: the tokens of the prompt, whose last ones are the context of a response's first.
        responses: whole earlier responses, in tokens.
    """

    def __init__(self, prompt: Sequence[int], responses: Sequence[Sequence[int]] = ()) -> None:
        self._before = array("i", prompt[-PAIR:])
        self._texts: list[array[int]] = []
        # A text and the place behind a pair of tokens are one number. Where each pair was seen last, by its tokens, and
        # where it was seen before that, by text and place: a chain of all places, the newest first.
        self._last: dict[int, int] = {}
        self._previous: list[array[int]] = []
        self.longest = max(map(len, responses), default=0)  # of the earlier ones, in tokens; 0 if there is none
        for response in responses:
            self.extend(self.begin(), response)

    def begin(self) -> int:
        """The number of a response that begins."""
        self._texts.append(array("i", self._before))
        self._previous.append(array("q", [NONE] * PAIR))
        return len(self._texts) - 1

    def extend(self, number: int, tokens: Sequence[int]) -> None:
        """The response goes on with these tokens."""
        self._texts[number].extend(tokens)

    def length(self, number: int) -> int:
        """Tokens that the response has so far."""
        return len(self._texts[number]) - len(self._before)

    def tail(self, number: int, most: int) -> list[int]:
        """Its last tokens, at most so many."""
        text = self._texts[number]
        return list(text[max(len(text) - most, len(self._before)) :])

    def latest(self, most: int) -> list[list[int]]:
        """The responses that began last, as far as they are."""
        return [list(text[len(self._before) :]) for text in self._texts[-most:]]

    @property
    def responses(self) -> int:
        """How many it has."""
        return len(self._texts)

    @property
    def size(self) -> int:
        """Bytes, about."""
        return TOKEN_BYTES * sum(map(len, self._texts)) + PAIR_BYTES * len(self._last)

    def draft(self, number: int, most: int) -> list[int]:
        """Up to `most` tokens that the response may go on with: what most of the places do that are most like its end."""
        drafted: list[int] = []
        places = self._places(number)
        while places and len(drafted) < most:
            following = Counter(text[place] for text, place in places)
            token, count = following.most_common(1)[0]
            if count < LEAST_SHARE * len(places):
                break
            drafted.append(token)
            places = [(text, at + 1) for text, at in places if text[at] == token and at + 1 < len(text)]
        return drafted

    def index(self, most: int) -> int:
        """Note up to `most` places that were added since, which drafts then know; how many. A million takes a second or two."""
        left, last = most, self._last
        for number, (text, previous) in enumerate(zip(self._texts, self._previous)):
            begin = len(previous)
            for place in range(begin, min(len(text) + 1, begin + left)):
                pair = text[place - 2] << SHIFT | text[place - 1]
                previous.append(last.get(pair, NONE))
                last[pair] = number << SHIFT | place
            left -= len(previous) - begin
        return most - left

    def _places(self, number: int) -> list[tuple[array, int]]:
        """The places (text, place) whose context is longest that of the response's end, and at which a text goes on."""
        own = self._texts[number]
        end, best = len(own), -1
        places: list[tuple[array, int]] = []
        at = self._last.get(own[-2] << SHIFT | own[-1], NONE) if end >= PAIR else NONE
        for _ in range(NEWEST):
            if at == NONE:
                break
            number, place = at >> SHIFT, at & (1 << SHIFT) - 1
            text = self._texts[number]
            if place < len(text):
                common, most = 0, min(place, end, CONTEXT + PAIR) - PAIR
                while common < most and text[place - PAIR - 1 - common] == own[end - PAIR - 1 - common]:
                    common += 1
                if common > best:
                    best, places = common, []
                if common == best:
                    places.append((text, place))
            at = self._previous[number][place]
        return places

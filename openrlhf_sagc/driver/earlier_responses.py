"""The last responses to each prompt, which engines draft from."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

MOST_BYTES = 512 * 2**20  # of all prompts
MOST_RESPONSES = 8  # of a prompt, the longest ones


class EarlierResponses:
    """Keeps tokens as bytes of int32, at most MOST_BYTES of them; the prompts that came back least recently go first.

    They are no part of a checkpoint: a resumed run drafts from siblings alone until its prompts come again.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, list[bytes]]] = OrderedDict()  # by the prompt's identity
        self._bytes = 0

    def keep(self, prompt: str, responses: Sequence[dict[str, Any]]) -> None:
        """These responses to the prompt, in the place of earlier ones.

        Args:
            prompt: its identity.
            responses: as `plain_response` gives them; those that did not finish are left out.
        """
        written = [response for response in responses if response.get("action_ranges")]
        if not written:
            return
        self._drop(self._kept.pop(prompt, None))
        texts = sorted((_text(response) for response in written), key=len, reverse=True)[:MOST_RESPONSES]
        begin = written[0]["action_ranges"][0][0]
        kept = (_bytes(written[0]["observation_tokens"][:begin]), texts)
        self._kept[prompt] = kept
        self._bytes += _size(kept)
        while self._bytes > MOST_BYTES:
            self._drop(self._kept.popitem(last=False)[1])

    def of(self, prompts: Iterable[str]) -> list[tuple[bytes, list[bytes]]]:
        """(prompt, its responses) of those that have any."""
        return [self._kept[prompt] for prompt in prompts if prompt in self._kept]

    @property
    def mib(self) -> float:
        """Of memory."""
        return self._bytes / 2**20

    def _drop(self, kept: tuple[bytes, list[bytes]] | None) -> None:
        self._bytes -= _size(kept) if kept else 0


def _text(response: dict[str, Any]) -> bytes:
    """From the first token that the model wrote to the last."""
    ranges = response["action_ranges"]
    return _bytes(response["observation_tokens"][ranges[0][0] : ranges[-1][1]])


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, np.int32).tobytes()


def _size(kept: tuple[bytes, list[bytes]]) -> int:
    return len(kept[0]) + sum(map(len, kept[1]))

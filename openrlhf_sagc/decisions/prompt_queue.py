"""The queue of training prompts: those that were put back, then the data, episode after episode."""

from collections import deque
from typing import Any, Protocol

from openrlhf_sagc.decisions.records import Prompt


class PromptSource(Protocol):
    """Where a queue gets its new prompts from."""

    def begin(self, episode: int) -> None:
        """Go to the first prompt of this episode, counted from 1."""

    def resume(self) -> None:
        """Go on in the episode that a checkpoint was saved in."""

    def take(self, count: int) -> tuple[list[tuple[str, Any, Any]], bool]:
        """The next `count` prompts as (text, label, images), and whether the episode ended before there were as many."""
        ...


class PromptQueue:
    """Hands out every prompt of an episode once, and those that were put back before any other.

    `episode` is the one that the trainer is in, counted from 1. The queue may draw from a later one already.
    """

    def __init__(self, source: PromptSource) -> None:
        self.episode = 1
        self._source = source
        self._drawn_episode = 0  # the last one that was begun
        self._is_drawing = False  # whether that one may have more prompts
        self._put_back: deque[Prompt] = deque()

    def __len__(self) -> int:
        """Number of prompts that were put back and wait."""
        return len(self._put_back)

    @property
    def waiting(self) -> list[Prompt]:
        """Prompts that were put back, in the order in which they will be drawn."""
        return list(self._put_back)

    @property
    def is_drained(self) -> bool:
        """Whether all prompts of the trainer's episode have been drawn."""
        return self._drawn_episode > self.episode - (not self._is_drawing)

    def draw(self, count: int, *, max_put_back: int, next_episode_allowed: bool) -> list[Prompt]:
        """`count` prompts.

        The first ones, at most `max_put_back`, were put back. If this episode has too few, later ones fill up; unless
        `next_episode_allowed`, they do so only behind a prompt of this one.
        """
        prompts = [self._put_back.popleft() for _ in range(min(count, max_put_back, len(self._put_back)))]
        while len(prompts) < count:
            if not self._is_drawing:
                if self.is_drained and not prompts and not next_episode_allowed:
                    break
                self._drawn_episode += 1
                self._source.begin(self._drawn_episode)
                self._is_drawing = True
            rows, ended = self._source.take(count - len(prompts))
            prompts += [Prompt(*row, self._drawn_episode) for row in rows]
            self._is_drawing = not ended
        return prompts

    def put_back(self, prompt: Prompt) -> None:
        """The prompt was not trained: it is drawn again, and must finish then."""
        self._put_back.append(prompt._replace(must_finish=True))

    def put_back_unused(self, prompts: list[Prompt]) -> None:
        """Groups of these prompts are whole, but a step had no place for them.

        Those that had waited before are drawn ahead of all others, so that no prompt is put off again and again.
        """
        self._put_back.extendleft([prompt for prompt in reversed(prompts) if prompt.must_finish])
        for prompt in prompts:
            if not prompt.must_finish:
                self.put_back(prompt)

    def close_episode(self, in_flight: list[Prompt]) -> bool:
        """Whether the trainer's episode is over; if so, the next one begins.

        It is over when all its prompts are drawn and none of them waits or is `in_flight`.
        """
        over = self.is_drained and all(prompt.episode > self.episode for prompt in [*self._put_back, *in_flight])
        self.episode += over
        return over

    def state_dict(self, running: list[Prompt]) -> dict:
        """What `load_state_dict` needs, besides the source's own state; `running` prompts are saved as put back.

        `drained` has OpenRLHF's meaning, so that a run without this queue can go on from the state as well.
        """
        return {
            "drained": not self._is_drawing,
            "drawn_episode": self._drawn_episode,
            "episode": self.episode,
            "returned": [list(prompt._replace(must_finish=True)) for prompt in [*running, *self._put_back]],
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; the source has its own state already."""
        self.episode = state["episode"]
        self._drawn_episode = state["drawn_episode"]
        self._put_back = deque(Prompt(*prompt) for prompt in state["returned"])
        self._is_drawing = not state["drained"]
        self._source.resume()  # even if no prompt is left: the next episode must not begin with this one's state

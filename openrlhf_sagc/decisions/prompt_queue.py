"""The queue of training prompts: those that were put back, then the data, episode after episode."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from openrlhf_sagc.decisions.frame import Frame
from openrlhf_sagc.decisions.records import Part, Prompt


class PromptSource(Protocol):
    """Where a queue gets its new prompts from; an episode has `size` of them."""

    size: float

    def begin(self, episode: int) -> None:
        """Go to the first prompt of this episode, counted from 1."""

    def resume(self) -> None:
        """Go on in the episode that a checkpoint was saved in."""

    def take(self, count: int) -> tuple[list[tuple[str, Any, Any]], bool]:
        """The next `count` prompts as (text, label, images), and whether the episode ended before there were as many."""
        ...


class PromptQueue:
    """Hands out every prompt of an episode once, and those that were put back before any other.

    `episode` is the one that the trainer is in, counted from 1. The queue may draw from a later one already. `frame` has
    prompts that wait for the steps of a frame.
    """

    def __init__(self, source: PromptSource) -> None:
        self.episode = 1
        self._source = source
        self._drawn_episode = 0  # the last one that was begun
        self._is_drawing = False  # whether that one may have more prompts
        self._taken = 0  # prompts of it
        self._put_back: deque[Prompt] = deque()
        self.frame = Frame()

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

    @property
    def left(self) -> float:
        """Prompts that the trainer's episode has left, those that were put back included."""
        if self.is_drained:
            return len(self)
        return len(self) + self._source.size - (self._taken if self._is_drawing else 0)

    def left_until(self, episode: int) -> float:
        """Prompts that are still to be drawn up to the end of this episode, those that were put back included."""
        waiting = sum(prompt.episode <= episode for prompt in [*self._put_back, *self.frame.prompts])
        if self._drawn_episode > episode:
            return waiting
        left = self._source.size - self._taken if self._is_drawing else 0
        later = episode - self._drawn_episode
        return waiting + left + (later * self._source.size if later else 0)

    def draw(self, count: int, *, max_put_back: int, next_episode_allowed: bool) -> list[Prompt]:
        """`count` prompts.

        The first ones, at most `max_put_back`, were put back. If this episode has too few, later ones fill up; unless
        `next_episode_allowed`, they do so only behind a prompt of this one.
        """
        prompts = [self._put_back.popleft() for _ in range(min(count, max_put_back, len(self._put_back)))]
        while len(prompts) < count:
            if not self._is_drawing and self.is_drained and not prompts and not next_episode_allowed:
                break
            prompts += self._take(count - len(prompts))
        return prompts

    def _take(self, count: int) -> list[Prompt]:
        """The next prompts of the data, fewer where an episode ends."""
        if not self._is_drawing:
            self._drawn_episode += 1
            self._source.begin(self._drawn_episode)
            self._taken = 0
        rows, ended = self._source.take(count)
        self._taken += len(rows)
        self._is_drawing = not ended
        return [Prompt(*row, self._drawn_episode) for row in rows]

    def begin_frame(
        self, steps: int, per_step: int, expect: Callable[[Prompt], float], *, from_data: bool = True
    ) -> None:
        """Fill the frame, sorted by what is expected: prompts that were put back, then those of the data.

        A frame ends with its episode, whose last step fills up with prompts of the next one.

        Args:
            steps, per_step: the frame has so many steps at most, each of which needs so many prompts.
            expect: a prompt's length.
            from_data: whether it takes prompts of the data; else only as many of those put back as fill steps.
        """
        self.dissolve_frame()
        count = len(self._put_back)
        if not from_data:
            count = max(min(count // per_step, steps), 1) * per_step
        prompts = [self._put_back.popleft() for _ in range(min(count, len(self._put_back)))]
        while from_data and len(prompts) < steps * per_step and not self.is_drained:
            prompts += self._take(steps * per_step - len(prompts))
        if prompts and from_data:
            prompts += self.draw(-len(prompts) % per_step, max_put_back=0, next_episode_allowed=True)
        self.frame.fill(prompts, expect)

    def draw_part(
        self, count: int, part: Part | None, *, must_finish: bool, next_episode_allowed: bool
    ) -> list[Prompt]:
        """`count` prompts of the frame, of this part or else beside those drawn last; if it has fewer, of the data.

        Args:
            must_finish: whether their step waits for all of them, else only for those that were put back.
        """
        prompts = self.frame.draw(count, part)
        allowed = next_episode_allowed or bool(prompts)
        prompts += self.draw(count - len(prompts), max_put_back=0, next_episode_allowed=allowed)
        return [_that_must_finish(prompt) for prompt in prompts] if must_finish else prompts

    def dissolve_frame(self) -> None:
        """What the frame has left waits like prompts that were put back."""
        left, self.frame = self.frame.prompts, Frame()
        for prompt in left:
            self.put_back(prompt)

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

    def end(self) -> None:
        """No prompt is drawn any more: an episode of which all were taken is over, which else the next draw would find."""
        self._is_drawing = self._is_drawing and self._taken < self._source.size

    def close_episode(self, in_flight: list[Prompt]) -> bool:
        """Whether the trainer's episode is over; if so, the next one begins.

        It is over when all its prompts are drawn and none of them waits or is `in_flight`.
        """
        waiting = [*self.frame.prompts, *self._put_back]
        over = self.is_drained and all(prompt.episode > self.episode for prompt in [*waiting, *in_flight])
        self.episode += over
        return over

    def state_dict(self, running: list[Prompt]) -> dict:
        """What `load_state_dict` needs, besides the source's own state; `running` prompts are saved as put back.

        `drained`: no prompt of an episode is left to be drawn, so the source has no state either.
        """
        return {
            "drained": not self._is_drawing,
            "drawn_episode": self._drawn_episode,
            "taken": self._taken,
            "episode": self.episode,
            "returned": [list(prompt._replace(must_finish=True)) for prompt in [*running, *self._put_back]],
            "frame": [list(prompt) for prompt in self.frame.prompts],
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; the source has its own state already."""
        self.episode = state["episode"]
        self._drawn_episode = state["drawn_episode"]
        self._taken = state.get("taken", 0)
        self._put_back = deque(Prompt(*prompt) for prompt in state["returned"])
        self.frame = Frame([Prompt(*prompt) for prompt in state.get("frame", [])])
        self._is_drawing = not state["drained"]
        self._source.resume()  # even if no prompt is left: the next episode must not begin with this one's state


def _that_must_finish(prompt: Prompt) -> Prompt:
    """From its first attempt on, which has no part in `stops`, as elsewhere."""
    return prompt if prompt.must_finish else prompt._replace(must_finish=True, stops=prompt.stops - 1)

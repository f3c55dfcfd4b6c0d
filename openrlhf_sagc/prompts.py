"""The queue of training prompts: those that were put back, and the dataloader, episode after episode."""

from collections import deque
from typing import NamedTuple

from openrlhf.trainer.ppo_utils.samples_generator import _collect_prompt_batch


class Prompt(NamedTuple):
    """A prompt of one episode; `owed` if its group was stopped or discarded before, so that it may not be again."""

    text: str
    label: str
    images: object
    episode: int
    owed: bool = False


class PromptQueue:
    """Hands out every prompt of an episode, and those put back before any other.

    Args:
        dataloader: OpenRLHF's prompt dataloader, with a `generator` for its order.
        seed: the order of an episode follows from it and the episode's number alone, so that a resumed run meets later
            episodes in the order of the uninterrupted one.
    """

    def __init__(self, dataloader, seed: int):
        self._dataloader = dataloader
        self._seed = seed
        self._iterator = None
        self._drawn_episode = 0  # that prompts are drawn from, counted from 1
        self.episode = 1  # that the trainer is in
        self._returned: deque[Prompt] = deque()

    def __len__(self) -> int:
        """Prompts that were put back and wait."""
        return len(self._returned)

    def draw(self, count: int, *, cross: bool, waiting: int) -> list[Prompt]:
        """`count` prompts, from later episodes where this one has too few; without `cross` none if it has none.

        The first are prompts that were put back, but at most `waiting` of them.
        """
        prompts = [self._returned.popleft() for _ in range(min(count, waiting, len(self._returned)))]
        while len(prompts) < count:
            if self._iterator is None:
                if self.drained and not prompts and not cross:
                    break
                self._dataloader.generator.manual_seed(self._seed + self._drawn_episode)
                self._drawn_episode += 1
                self._iterator = iter(self._dataloader)
            *columns, drained = _collect_prompt_batch(self._iterator, count - len(prompts))
            prompts += [Prompt(*column, self._drawn_episode) for column in zip(*columns)]  # type: ignore[call-arg]
            if drained:
                self._iterator = None
        return prompts

    def put_back(self, prompt: Prompt) -> None:
        """To be drawn again, before any new prompt if it may be."""
        self._returned.append(prompt._replace(owed=True))

    def close_episode(self, under_way: list[Prompt]) -> bool:
        """Go on to the next episode if all prompts of this one are drawn and none waits or is `under_way`."""
        done = self.drained and all(prompt.episode > self.episode for prompt in [*self._returned, *under_way])
        self.episode += done
        return done

    @property
    def drained(self) -> bool:
        """Whether all prompts of the trainer's episode have been drawn."""
        return self._drawn_episode > self.episode - (self._iterator is None)

    def state_dict(self, under_way: list[Prompt]) -> dict:
        """Besides the dataloader's own state; prompts `under_way` are saved as put back."""
        return {
            "drained": self._iterator is None,
            "drawn_episode": self._drawn_episode,
            "episode": self.episode,
            "returned": [tuple(prompt._replace(owed=True)) for prompt in [*under_way, *self._returned]],
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from `state_dict()`; the dataloader has been loaded before."""
        self._drawn_episode = state["drawn_episode"]
        self.episode = state["episode"]
        self._returned = deque(Prompt(*prompt) for prompt in state["returned"])
        self._iterator = None if state["drained"] else iter(self._dataloader)

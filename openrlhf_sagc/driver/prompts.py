"""OpenRLHF's prompt dataloader as the source of a `PromptQueue`."""

from typing import Any

from openrlhf.trainer.ppo_utils.samples_generator import _collect_prompt_batch


def in_order(strategy, dataloader, num_workers: int):
    """OpenRLHF's prompt dataloader without its random order."""
    return strategy.setup_dataloader(
        dataloader.dataset, 1, True, False, dataloader.collate_fn, num_workers=num_workers
    )


class DataloaderPrompts:
    """Prompts of a dataloader.

    Args:
        dataloader: OpenRLHF's prompt dataloader, whose sampler has a `generator` for its order; without one every episode has
            the order of the data.
        seed: the order of an episode follows from it and the episode's number alone. So a resumed run meets later
            episodes in the order of the uninterrupted one.
    """

    def __init__(self, dataloader, seed: int) -> None:
        self._dataloader = dataloader
        self._seed = seed
        self.size: float = len(dataloader)
        self._iterator: Any = None

    def begin(self, episode: int) -> None:
        """Go to the first prompt of this episode, counted from 1."""
        if generator := getattr(self._dataloader.sampler, "generator", None):
            generator.manual_seed(self._seed + episode - 1)
        self.resume()

    def resume(self) -> None:
        """Go on where the dataloader's own state says."""
        self._iterator = iter(self._dataloader)

    def take(self, count: int) -> tuple[list[tuple], bool]:
        """The next `count` prompts as (text, label, images), and whether the episode ended before there were as many."""
        *columns, ended = _collect_prompt_batch(self._iterator, count)
        return list(zip(*columns)), ended

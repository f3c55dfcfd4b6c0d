"""A frame: prompts in the order of their expected lengths, of which each of its steps draws a part, so that they are alike."""

import math
from collections.abc import Callable, Sequence

from openrlhf_sagc.decisions.records import Part, Prompt


class Frame:
    """The prompts of a frame that no step has drawn yet, the shortest first; `PromptQueue` fills it.

    A step draws its part, and after that the prompts that are left beside it, which are the most alike.
    """

    def __init__(self, prompts: Sequence[Prompt] = ()) -> None:
        self.prompts = list(prompts)
        self._gap = 0  # the place that was drawn from last, within a step

    def __len__(self) -> int:
        return len(self.prompts)

    def fill(self, prompts: Sequence[Prompt], expect: Callable[[Prompt], float]) -> None:
        """Begin with these prompts, of which each is expected to be so long; equal ones keep their order."""
        self.prompts = sorted(prompts, key=expect)

    def part(self, steps: int, per_step: int, place: float) -> Part:
        """The next step's part, where the frame has at most so many steps, itself included, and each of them needs so many prompts.

        Args:
            place: in [0, 1), which of the parts that are left it is, the shortest first.
        """
        of = max(min(steps, math.ceil(len(self.prompts) / per_step)), 1)
        return Part(int(place * of), of)

    def draw(self, count: int, part: Part | None) -> list[Prompt]:
        """At most `count` prompts of this part, or of those beside the last ones.

        More than the part has are of those around it. If it has more, those that must finish come first, and of these the
        ones of the earliest episode: else its longest and shortest could wait for ever, and the episode with them.
        """
        left = len(self.prompts)
        begin, end = (left * part.place // part.of, left * (part.place + 1) // part.of) if part else (self._gap,) * 2
        if end - begin < count:
            begin = max(min(begin - (count - end + begin) // 2, left - count), 0)
            end = min(begin + count, left)
        middle = (begin + end - 1) / 2

        def rank(place: int) -> tuple[float, float]:
            prompt = self.prompts[place]
            return prompt.episode if prompt.must_finish else math.inf, abs(place - middle)

        places = sorted(range(begin, end), key=rank)
        drawn, self._gap = places[:count], begin + len(places[count:]) // 2
        taken = set(drawn)
        prompts = [self.prompts[place] for place in drawn]
        self.prompts = [prompt for place, prompt in enumerate(self.prompts) if place not in taken]
        return prompts

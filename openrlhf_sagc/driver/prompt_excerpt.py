"""A prompt in a message."""

from typing import Any

LONGEST = 240  # characters


def excerpt(prompt: Any) -> str:
    """The prompt, quoted; a long one by its beginning and more of its end, since prompts may share a system prompt."""
    if not isinstance(prompt, str):  # an agent's may be a chat
        prompt = str(prompt)
    return repr(prompt if len(prompt) <= LONGEST else f"{prompt[: LONGEST // 4]} ... {prompt[-LONGEST * 3 // 4 :]}")

"""A prompt in a message."""

LONGEST = 240  # characters


def excerpt(prompt: str) -> str:
    """The prompt, quoted; a long one by its beginning and more of its end, since prompts may share a system prompt."""
    return repr(prompt if len(prompt) <= LONGEST else f"{prompt[: LONGEST // 4]} ... {prompt[-LONGEST * 3 // 4 :]}")

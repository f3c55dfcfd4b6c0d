"""Samples of OpenRLHF's, made of responses with fewer copies: at thousands of rollouts a step this is most of what a driver does."""

from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

ONE_11 = torch.ones((1, 1), dtype=torch.long)


def sample_of(response: dict[str, Any], max_len: int) -> Experience:
    """What OpenRLHF's `_process_response_into_experience` makes of a response without logs, bit for bit.

    Its attention mask is a view of a single element, which nobody may write to; batches of samples are copies.

    Args:
        response: as `plain_response` gives it, with its reward and scores as floats or None.
        max_len: tokens of prompt and response that are kept.
    """
    tokens_1T = np.array([response["observation_tokens"][:max_len]], np.int64)
    count = tokens_1T.size
    mask_1T = np.zeros((1, max(count - 1, 0)), np.int64)
    kept = [(max(start - 1, 0), min(end, count) - 1) for start, end in response["action_ranges"]]
    kept = [(start, end) for start, end in kept if start < end]
    for start, end in kept:
        mask_1T[:, start:end] = 1
    reward, score, log_probs = response.get("reward"), response.get("scores"), response["rollout_log_probs"]
    rewards = None if reward is None else torch.tensor([reward])
    scores = None if score is None else torch.tensor([score])
    info = {"response_clip_ratio": torch.tensor([count >= max_len])}
    info |= {name: value.clone() for name, value in (("reward", rewards), ("score", scores)) if value is not None}
    return Experience(
        sequences=torch.from_numpy(tokens_1T),
        attention_mask=ONE_11.expand(1, count),
        action_mask=torch.from_numpy(mask_1T),
        rollout_log_probs=(
            None if log_probs is None else torch.from_numpy(np.array([log_probs[1:max_len]], np.float32))
        ),
        prompts=[response["prompt"]],
        labels=[response["label"]],
        images=[response.get("images")],
        mm_train_inputs=[response.get("mm_train_inputs")],
        rewards=rewards,
        scores=scores,
        response_length=torch.tensor([kept[-1][1] - kept[0][0] if kept else 0]),
        truncated=torch.tensor([response.get("truncated", False)]),
        total_length=torch.tensor([float(count)]),
        info=info,
    )

"""Launches on a GPU node that is none, up to the first kernels: start.py MODEL, with {name: [module, flag, ...]} in JSON on standard input.

For each: what preflight.py finds; then the policy's model as OpenRLHF makes it, with a forward and a backward pass of packed samples
through the attention that the flags name, against torch's own attention. Prints a JSON object
by name, and what transformers would do without the flag.
"""

import argparse
import json
import sys
from functools import cache
from pathlib import Path

import torch

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "train_scripts")]
LENGTHS = (5, 9, 2)


def checked(words):
    """What preflight.py says of a command."""
    import preflight

    options = argparse.Namespace(
        command=words, device="gpu", cluster=None, ports=[], disk_gb=0, memory_gb=0, isolated_network=True
    )
    return list(preflight.known_problems(options)), preflight.all_right(options)


def packed(model, attention):
    """Log-probabilities of samples in one pack, and a weight's gradient: float32 of what a bfloat16 model gives."""
    from openrlhf.models import Actor

    actor = Actor(model, attn_implementation=attention, packing_samples=True)
    tokens, mask = (
        torch.arange(3 * max(LENGTHS)).view(3, -1) % 29,
        torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None],
    )
    log_probs = actor(tokens, attention_mask=mask.long(), return_logprobs=True)
    valid = mask[:, 1:]
    (log_probs * valid).sum().backward()
    gradient = actor.model.model.layers[0].self_attn.k_proj.weight.grad
    return actor.model.config._attn_implementation, (log_probs * valid).detach().float(), gradient.float()


def difference(found, expected):
    """The greatest one, as a share of the greatest value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()


@cache
def first_kernels(model, attention):
    """The attention of a model that OpenRLHF has made, how far it is from torch's, and the bounds of the pack that it was given."""
    name, *found = packed(model, attention)
    expected = packed(model, "sdpa")[1:]
    bounds = sys.modules["_flash_attn2_stub"].CALLS.pop()
    return {"attention": name, "differences": [difference(*pair) for pair in zip(found, expected)], "bounds": bounds}


def started(words, model):
    problems, said = checked(words)
    if problems:
        return {"problems": problems}
    attention = words[words.index("--ds.attn_implementation") + 1]
    return {"problems": problems, "said": said, **first_kernels(model, attention)}


def by_itself(model):
    """What transformers makes of OpenRLHF's default where flash-attn is missing."""
    from openrlhf.models import Actor

    try:
        return Actor(model, attn_implementation="flash_attention_2").model.config._attn_implementation
    except ImportError as error:
        return str(error)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    found = {name: started(words, sys.argv[1]) for name, words in given.items()}
    print(json.dumps(found | {"transformers by itself": by_itself(sys.argv[1])}))

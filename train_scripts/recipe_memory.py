"""Prints the recipes' memory as docs/launch_scripts.md has it; with --write puts it there and into the scripts' first lines."""

import argparse
import re
import sys
import textwrap
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from memory import (  # noqa: E402
    CARD_GB,
    RELEASED_LOGIT_BYTES,
    Sizes,
    generation_parts,
    in_words,
    sync_parts,
    total,
    training_parts,
)
from memory_problems import most_tokens  # noqa: E402

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/launch_scripts.md"
BETWEEN = re.compile(r"(<!-- memory -->\n).*?(<!-- /memory -->)", re.DOTALL)
CARDS = (80, 96, 141)
CONFIGS = {  # of the models' config.json
    "Qwen2.5-1.5B": dict(
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        vocab_size=151936,
        tie_word_embeddings=True,
    ),
    "Qwen2.5-7B": dict(
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18944,
        vocab_size=152064,
    ),
    "Qwen2.5-32B": dict(
        hidden_size=5120,
        num_hidden_layers=64,
        num_attention_heads=40,
        num_key_value_heads=8,
        intermediate_size=27648,
        vocab_size=152064,
    ),
}
ASYNC = dict(share=0.9, colocated=False, sleeps=False)
RECIPES = {  # a test has these of the scripts
    "dapo_qwen2.5_1.5b.sh": ("Qwen2.5-1.5B", Sizes(tokens=20480, longest=10240, gpus=8, ranks=1)),
    "dapo_qwen2.5_7b.sh": ("Qwen2.5-7B", Sizes(tokens=22528, longest=22528, gpus=8, ranks=2)),
    "dapo_qwen2.5_32b_multinode.sh": ("Qwen2.5-32B", Sizes(tokens=10240, longest=10240, gpus=64, ranks=4)),
    "dapo_async_partial_rollout.sh": ("Qwen2.5-7B", Sizes(tokens=10240, longest=10240, gpus=4, ranks=1, **ASYNC)),
    "multi_turn_agent.sh": ("Qwen2.5-7B", Sizes(tokens=16384, longest=16384, gpus=8, ranks=2)),
}


def table() -> str:
    """Markdown, a row a recipe: GB of a GPU, and the tokens of a micro-batch that fit."""
    cards = [f"{card} GB" for card in CARDS]
    names = ["script", "training", f"with {RELEASED_LOGIT_BYTES} bytes a logit", "sync"]
    names += [f"{what}, {card}" for what in ("engines", "tokens") for card in cards]
    rows = [names, ["---", *["---:"] * (len(names) - 1)]]
    for script, (model, sizes) in RECIPES.items():
        config, released = CONFIGS[model], sizes._replace(logit_bytes=RELEASED_LOGIT_BYTES)
        row = [f"`{script}`", *(f"{total(training_parts(config, each)):.0f}" for each in (sizes, released))]
        row.append(f"{total(sync_parts(config, sizes)):.0f}" if sizes.colocated else "-")
        row += [f"{total(generation_parts(config, sizes, card)):.0f}" for card in CARDS]
        rows.append(row + [f"{most_tokens(config, sizes, card):,}" for card in CARDS])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def first_lines(script: str) -> str:
    """Of the script, on a card of CARD_GB."""
    config, sizes = CONFIGS[RECIPES[script][0]], RECIPES[script][1]
    training, generation = training_parts(config, sizes), generation_parts(config, sizes, CARD_GB)
    lines = (f"training {in_words(training)}", f"engines {in_words(generation)}")
    return "".join(
        f"{textwrap.fill(line, 119, initial_indent='#   ', subsequent_indent='#     ')}\n" for line in lines
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--write", action="store_true", help="into the page and the scripts, instead of printing")
    if arguments.parse_args().write:
        PAGE.write_text(BETWEEN.sub(lambda found: found[1] + table() + found[2], PAGE.read_text()))
        for name in RECIPES:
            head = re.compile(r"^#   training .*?(?=^# \w)", re.MULTILINE | re.DOTALL)
            text = head.sub(lambda found, name=name: first_lines(name), (HERE / name).read_text(), count=1)
            (HERE / name).write_text(text)
    else:
        print(table() + "\n".join(f"{name}\n{first_lines(name)}" for name in RECIPES), end="")

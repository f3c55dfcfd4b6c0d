"""Make the data of a small task and a small Qwen3 model warm-started on written-out responses, reproducible from the seed.

A task is a folder beside this file: task.py has its problems and CONTEXT, words.py its WORDS.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from progress import progress_line
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging
from word_level import word_level_tokenizer

TASKS = ("countdown", "route")
IGNORED = -100
BATCHES_SORTED_TOGETHER = 16


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=TASKS, default=TASKS[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for model/ and data/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=850, help="optimizer steps")
    parser.add_argument("--batch_size", type=int, default=48, help="responses a step")
    parser.add_argument("--learning_rate", type=float, default=3e-3, help="the highest, after the warm-up")
    parser.add_argument(
        "--heads",
        type=int,
        nargs=2,
        default=(3, 3),
        metavar=("HEADS", "KEYS"),
        help="of attention, and of keys and values",
    )
    parser.add_argument("--heldout", type=int, default=256, help="problems that are held out of training")
    return parser.parse_args()


def write_data(folder: Path, train: list, heldout: list) -> None:
    """Write train.jsonl and heldout.jsonl, one object with the keys `prompt` and `label` a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, instances in (("train", train), ("heldout", heldout)):
        rows = (json.dumps({"prompt": instance.prompt, "label": instance.label}) for instance in instances)
        write_file(folder / f"{name}.jsonl", "".join(f"{row}\n" for row in rows))


def write_file(path: Path, text: str) -> None:
    """Write it all at once; a file with another content that is there already is moved to `NAME.earlier-N`."""
    if os.path.lexists(path) and not (path.is_file() and path.read_bytes() == text.encode()):
        path.rename(earlier_name(path))
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)


def earlier_name(path: Path) -> Path:
    """`NAME.earlier-N` beside it, with the first N that is free."""
    names = (path.with_name(f"{path.name}.earlier-{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def build_model(tokenizer: PreTrainedTokenizerFast, context: int, heads: Sequence[int]) -> Qwen3ForCausalLM:
    """An untrained model of about 0.4 M parameters that reads `context` tokens; heads of attention, and of keys and values.

    vLLM on a CPU wants a head_dim that is a multiple of 32.
    """
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def training_batches(task, instances, tokenizer, steps, batch_size, rng):
    """Yield `steps` batches of responses of similar length: (ids [B, T], labels [B, T], IGNORED on prompt and pad)."""
    for start in range(0, steps, BATCHES_SORTED_TOGETHER):
        count = min(BATCHES_SORTED_TOGETHER, steps - start)
        drawn = rng.choices(instances, k=count * batch_size)
        texts = [f"{text} {tokenizer.eos_token}" for text in task.written_out(drawn, rng)]
        encoded = sorted(tokenizer(text=texts, add_special_tokens=False)["input_ids"], key=len)
        batches = [encoded[i * batch_size : (i + 1) * batch_size] for i in range(count)]
        rng.shuffle(batches)
        prompt_length = len(drawn[0].prompt.split())
        for rows in batches:
            ids = torch.full((batch_size, len(rows[-1])), tokenizer.pad_token_id)
            labels = torch.full_like(ids, IGNORED)
            for i, row in enumerate(rows):
                ids[i, : len(row)] = torch.tensor(row)
                labels[i, prompt_length : len(row)] = ids[i, prompt_length : len(row)]
            yield ids, labels


def warm_start(model, batches, steps: int, learning_rate: float) -> float:
    """Train on `batches` in place; returns the mean cross-entropy (nats a token) of the last twentieth."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - warmup), eta_min=learning_rate / 50),
        ],
        milestones=[warmup],
    )
    losses = []
    model.train()
    with progress_line(Console(), "warm start") as show:
        for ids, labels in batches:
            logits = model(ids[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            show(len(losses) / steps, f"warm start, loss {losses[-1]:.3f}")
    recent = losses[-max(1, steps // 20) :]
    return sum(recent) / len(recent)


def save(folder: Path, model, tokenizer: PreTrainedTokenizerFast) -> None:
    """Save both in the folder, all at once; a model that is there already is moved to `NAME.earlier-N`."""
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    model.save_pretrained(fresh)
    tokenizer.save_pretrained(fresh)
    if folder.exists():
        folder.rename(earlier_name(folder))
    fresh.rename(folder)


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # gives the terminal its cursor back
    started = time.monotonic()
    sys.path.append(str(Path(__file__).with_name(arguments.task)))
    task, words = importlib.import_module("task"), importlib.import_module("words")
    try:
        train, heldout = task.split_instances(arguments.seed, arguments.heldout)
    except ValueError as error:
        raise SystemExit(f"train_scripts/warm_start.py: --{error}") from None
    write_data(arguments.output / "data", train, heldout)
    write_file(arguments.output / "data/task.txt", arguments.task + "\n")
    torch.manual_seed(arguments.seed)
    tokenizer = word_level_tokenizer(words.WORDS)
    model = build_model(tokenizer, task.CONTEXT, arguments.heads)
    rng = random.Random(arguments.seed)
    batches = training_batches(task, train, tokenizer, arguments.steps, arguments.batch_size, rng)
    loss = warm_start(model, batches, arguments.steps, arguments.learning_rate)
    logging.disable_progress_bar()  # of a file that takes no time to write
    model = model.to(torch.bfloat16)
    save(arguments.output / "model", model, tokenizer)
    seconds = time.monotonic() - started
    print(f"{arguments.steps} steps of {arguments.batch_size} responses in {seconds:.0f} s, loss {loss:.3f}")


if __name__ == "__main__":
    main()

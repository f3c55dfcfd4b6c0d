"""Moves what an earlier run has left in the output folders aside, into a folder `earlier-N` beside it. Nothing is deleted."""

import itertools
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from openrlhf_sagc.run.output_folders import ROTATED

# What OpenRLHF writes into --ckpt.output_dir, by the names that transformers and peft give.
MODEL = (
    *("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.*", "adapter_config.json", "config.json", "generation_config.json", "*processor_config.json"),
    *("tokenizer.*", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("spiece.model", "sentencepiece*.model", "chat_template.*"),
)
CHECKPOINTS = (*ROTATED, "*global_step*_hf")  # in --ckpt.path
LOGS = ("events.out.tfevents.*",)  # in the run's folder below --logger.tensorboard_dir


def set_earlier_outputs_aside(args: SimpleNamespace, held: dict[str, str]) -> None:
    """Move an earlier run's model aside, and its checkpoints and log unless this run goes on with them.

    Args:
        args: OpenRLHF's; with `ckpt.load_enable` this run goes on from a checkpoint.
        held: flag -> folder, of those that this run holds; others are left as they are.

    Raises:
        SystemExit: something cannot be moved; the message is one line.
    """
    earlier: dict[str, tuple[str, tuple[str, ...]]] = {"--ckpt.output_dir": ("model", MODEL)}
    if not args.ckpt.load_enable:
        earlier |= {"--ckpt.path": ("checkpoints", CHECKPOINTS), "--logger.tensorboard_dir": ("log", LOGS)}
    for flag, (what, patterns) in earlier.items():
        if flag in held:
            _move(flag, Path(held[flag]), what, patterns)


def _move(flag: str, folder: Path, what: str, patterns: tuple[str, ...]) -> None:
    try:
        found = {path for pattern in patterns for path in folder.glob(pattern) if _is_output(path, what)}
        if not found:
            return
        aside = fresh_folder(folder)
        for path in sorted(found):
            path.rename(aside / path.name)
    except OSError as error:
        raise SystemExit(
            f"openrlhf_sagc: {flag} {folder} has the {what} of an earlier run, which cannot be moved aside "
            f"({error.strerror}): give this run a folder of its own"
        ) from None
    print(f"openrlhf_sagc: {flag} {folder} had the {what} of an earlier run, now in {aside}")


def _is_output(path: Path, what: str) -> bool:
    """Models and logs are files, or links to some; checkpoints are folders with something in them."""
    if what != "checkpoints":
        return path.is_symlink() or path.is_file()
    return path.is_symlink() or (path.is_dir() and any(path.iterdir()))


def fresh_folder(folder: Path) -> Path:
    """A new folder in this one, `earlier-N` with the first N that is free."""
    for number in itertools.count(1):
        aside = folder / f"earlier-{number}"
        with suppress(FileExistsError):
            aside.mkdir()
            return aside
    raise AssertionError("there is always a next number")

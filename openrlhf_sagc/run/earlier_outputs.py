"""Moves what an earlier run has left in the output folders aside, into a folder `earlier-N` beside it. Nothing is deleted."""

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from openrlhf_sagc.config.refusal import ROLLOUTS_TO, refusal, refuse
from openrlhf_sagc.config.settings import Settings
from openrlhf_sagc.run.output_folders import MODELS, ROTATED

# What OpenRLHF writes into --ckpt.output_dir, by the names that transformers and peft give.
MODEL = (
    *("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.*", "adapter_config.json", "config.json", "generation_config.json", "*processor_config.json"),
    *("tokenizer.*", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("spiece.model", "sentencepiece*.model", "chat_template.*"),
)
CHECKPOINTS = (*ROTATED, "*global_step*_hf")  # in --ckpt.path
LOGS = ("events.out.tfevents.*",)  # in the run's folder below --logger.tensorboard_dir


def set_earlier_outputs_aside(args: Settings, held: dict[str, str]) -> None:
    """Move an earlier run's model aside, and its checkpoints and log unless this run goes on with them.

    Args:
        args: OpenRLHF's; with `ckpt.load_enable` this run goes on from a checkpoint.
        held: flag -> folder, of those that this run holds; others are left as they are.

    Raises:
        SystemExit: something cannot be moved, or this run loads it; the message is one line.
    """
    earlier: dict[str, tuple[str, tuple[str, ...]]] = {"--ckpt.output_dir": ("model", MODEL)}
    earlier[ROLLOUTS_TO] = "rollouts", ("step-*",)  # of a run that goes on, too: what it rolls out again may differ
    if not args.ckpt.load_enable:
        earlier |= {"--ckpt.path": ("checkpoints", CHECKPOINTS), "--logger.tensorboard_dir": ("log", LOGS)}
    found = {flag: _found(flag, Path(held[flag]), *what) for flag, what in earlier.items() if flag in held}
    for flag, paths in found.items():
        _refuse_loaded(args, flag, earlier[flag][0], paths)
    for flag, paths in found.items():
        if paths:
            _move(flag, Path(held[flag]), earlier[flag][0], paths)


def _found(flag: str, folder: Path, what: str, patterns: tuple[str, ...]) -> list[Path]:
    """What an earlier run has left in the folder."""
    try:
        return sorted({path for pattern in patterns for path in folder.glob(pattern) if _is_output(path, what)})
    except OSError as error:
        raise _immovable(flag, folder, what, error) from None


def _refuse_loaded(args: Settings, flag: str, what: str, found: list[Path]) -> None:
    """This run loads nothing of what would be moved, which then would be gone."""
    moved = {_place(path) for path in found}
    for loading, given in _loaded(args):
        parts = {_place(part) for path in (given.absolute(), given.resolve()) for part in (path, *path.parents)}
        refuse(
            parts & moved,
            f"{loading} {given} is among the {what} of an earlier run in {flag}, which a run that begins anew moves aside: "
            f"give another {flag}",
        )


def _loaded(args: Settings) -> Iterator[tuple[str, Path]]:
    """(flag, path) of what this run reads and is there on this node."""
    flags = [f"{section}.model_name_or_path" for section in MODELS]
    for flag in (*flags, "data.prompt_dataset", "eval.dataset", "train.agent_func_path", "reward.remote_url"):
        section, _, name = flag.partition(".")
        value = getattr(getattr(args, section, None), name, None) or ()
        for word in value.split(",") if isinstance(value, str) else value:
            with suppress(OSError, ValueError):
                if os.path.lexists(word):
                    yield f"--{flag}", Path(word)


def _place(path: Path) -> str:
    """The path itself, which may be a link, by one name."""
    return os.path.join(os.path.realpath(path.parent), path.name)


def _move(flag: str, folder: Path, what: str, found: list[Path]) -> None:
    """Move all of it or nothing."""
    aside = None
    try:
        with ExitStack() as undo:
            aside = fresh_folder(folder)
            undo.callback(aside.rmdir)
            links = {link: _shifted(link, folder, aside, found) for path in found for link in _relative_links(path)}
            for path in found:
                path.rename(aside / path.name)
                undo.callback((aside / path.name).rename, path)
            for link, target in links.items():
                moved = aside / link.relative_to(folder)
                undo.callback(_point, moved, os.readlink(moved))
                _point(moved, target)
            undo.pop_all()
    except OSError as error:
        while isinstance(error.__context__, OSError):
            error = error.__context__  # why it was undone
        left = aside if aside and os.path.lexists(aside) else None
        raise _immovable(flag, folder, what, error, left) from None
    print(f"openrlhf_sagc: {flag} {folder} had the {what} of an earlier run, now in {aside}")


def _immovable(flag: str, folder: Path, what: str, error: OSError, left: Path | None = None) -> SystemExit:
    partly = f", a part of it is in {left} now" if left else ""
    return refusal(
        f"{flag} {folder} has the {what} of an earlier run, which cannot be moved aside ({error.strerror}){partly}: give "
        "this run a separate folder"
    )


def _relative_links(path: Path) -> Iterator[Path]:
    """The path itself or those below it that are links to a place named from where they stand."""
    if path.is_symlink():
        below = [path]
    else:
        below = [Path(top, name) for top, folders, files in os.walk(path) for name in (*folders, *files)]
    yield from (link for link in below if link.is_symlink() and not os.path.isabs(os.readlink(link)))


def _shifted(link: Path, folder: Path, aside: Path, found: list[Path]) -> str:
    """Where the link leads to once it is moved, so that it is the same place; what moves with it stays as it is."""
    given = os.readlink(link)
    target = Path(os.path.normpath(os.path.join(os.path.realpath(link.parent), given)))
    if any(target.is_relative_to(_place(path)) for path in found):
        return given
    return os.path.relpath(target, os.path.join(os.path.realpath(aside), link.parent.relative_to(folder)))


def _point(link: Path, target: str) -> None:
    fresh = link.with_name(f"{link.name}.new")
    fresh.symlink_to(target)
    fresh.replace(link)


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

"""Renames a folder in which an earlier run has left its outputs, as a whole, to FOLDER.earlier-N. Nothing is deleted."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from openrlhf_sagc.config.refusal import ROLLOUTS_TO, refusal, refuse
from openrlhf_sagc.config.settings import Settings, flat
from openrlhf_sagc.run.output_folders import LOCK, ROTATED, WRITTEN, in_use

# What OpenRLHF writes into --ckpt.output_dir, by the names that transformers and peft give.
MODEL = (
    *("model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"),
    *("adapter_model.*", "adapter_config.json", "config.json", "generation_config.json", "*processor_config.json"),
    *("tokenizer.*", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("spiece.model", "sentencepiece*.model", "chat_template.*"),
)
LEFT = {  # by a run, in the folder of a flag: what it is, and its names
    "--ckpt.output_dir": ("model", MODEL),
    "--ckpt.path": ("checkpoints", (*ROTATED, "*global_step*_hf")),
    "--logger.tensorboard_dir": ("log", ("events.out.tfevents.*",)),
    ROLLOUTS_TO: ("rollouts", ("step-*",)),
}
GOES_ON = ("--ckpt.path", "--logger.tensorboard_dir")  # with what is in these a resumed run does


def set_earlier_outputs_aside(args: Settings, held: dict[str, str]) -> bool:
    """Rename each folder that has outputs of an earlier run; of a resumed run these are others, see `GOES_ON`.

    A resumed run may have its checkpoints and its log in --ckpt.output_dir. There an earlier model alone is moved, to
    `earlier-N` in it.

    Args:
        args: OpenRLHF's; with `ckpt.load_enable` this run goes on from a checkpoint.
        held: flag -> folder, of those that this run holds; others are left as they are.

    Returns:
        Whether a folder was renamed, so that this run has to hold its own ones anew.

    Raises:
        SystemExit: one cannot be renamed, or something in it is in use; the message is one line.
    """
    resumes = args.ckpt.load_enable
    found = {flag: list(_left(flag, Path(folder))) for flag, folder in held.items()}
    moved = found.pop("--ckpt.output_dir", []) if resumes else []
    old = [flag for flag, paths in found.items() if paths and not (resumes and flag in GOES_ON)]
    old.sort(key=lambda flag: len(_real(held[flag]).parts))  # what is in another one goes with that
    for flag in old:
        _refuse_fixed(args, flag, held)
    if moved:
        _move_model(Path(held["--ckpt.output_dir"]), moved)
    for flag in old:
        if (folder := _real(held[flag])).exists():
            aside = _free(folder.with_name(f"{folder.name}.earlier-"))
            try:
                folder.rename(aside)
                folder.mkdir(exist_ok=True)
            except OSError as error:
                raise refusal(_fixed(flag, held, str(error.strerror))) from None
            print(f"openrlhf_sagc: {flag} {held[flag]} had the {LEFT[flag][0]} of an earlier run, and is {aside} now")
    return bool(old)


def _left(flag: str, folder: Path) -> Iterator[Path]:
    """What an earlier run has left in the folder: files, links, and folders that have some."""
    for path in sorted({path for pattern in LEFT[flag][1] for path in folder.glob(pattern)}):
        if any(inner.is_symlink() or inner.is_file() for inner in (path, *path.rglob("*"))):
            yield path


def _refuse_fixed(args: Settings, flag: str, held: dict[str, str]) -> None:
    """The folder of the flag can be renamed, as far as that can be seen before, and nobody needs what is in it."""
    folder, own = _real(held[flag]), [_real(path) for path in held.values()]
    for place in own:
        refuse(place.is_relative_to(folder) and place.is_mount(), _fixed(flag, held, f"{place} is a mount"))
    refuse(not os.access(folder.parent, os.W_OK), _fixed(flag, held, f"{folder.parent} cannot be written to"))
    for name, path in _used(args, held, flag):
        is_in = Path(os.path.abspath(path)).is_relative_to(folder) or _real(path).is_relative_to(folder)
        refuse(is_in, _fixed(flag, held, f"{name} {path} is in it"))
    for lock in folder.rglob(LOCK):
        refuse(lock.parent not in own and in_use(lock), _fixed(flag, held, f"another run writes to {lock.parent}"))


def _used(args: Settings, held: dict[str, str], flag: str) -> Iterator[tuple[str, str]]:
    """(name, path) of what this run works in, reads, or goes on with besides the flag's folder."""
    yield from (
        ("the working folder", os.getcwd()),
        ("Python", sys.prefix),
        ("this package", str(Path(__file__).parents[1])),
    )
    written = () if args.ckpt.load_enable else WRITTEN
    for name, value in flat(args).items():
        for word in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(word, str) and f"--{name}" not in (flag, *written):
                parts = {part for text in word.split(",") for part in (text, text.rpartition(":")[0])}
                yield from ((f"--{name}", part) for part in sorted(parts) if part and os.path.lexists(part))


def _move_model(folder: Path, found: list[Path]) -> None:
    """Move these files of --ckpt.output_dir into `earlier-N` in it. A link leads to the same place from there."""
    flag, aside = "--ckpt.output_dir", _free(folder / "earlier-")
    try:
        aside.mkdir()
        for path in found:
            path.rename(aside / path.name)
        for link in filter(Path.is_symlink, aside.iterdir()):
            if not link.exists() and not (target := link.readlink()).is_absolute():
                link.unlink()
                link.symlink_to(_real(folder) / target)
    except OSError as error:
        partly = f", a part of it is in {aside} now" if aside.is_dir() and any(aside.iterdir()) else ""
        raise refusal(_fixed(flag, {flag: str(folder)}, f"{error.strerror}{partly}")) from None
    print(f"openrlhf_sagc: {flag} {folder} had the model of an earlier run, which is in {aside} now")


def _fixed(flag: str, held: dict[str, str], why: str) -> str:
    return (
        f"{flag} {held[flag]} has the {LEFT[flag][0]} of an earlier run, and cannot be moved aside ({why}): give this run a "
        "separate folder"
    )


def _real(folder: str | Path) -> Path:
    """The folder itself where a link leads to it: the link stays, and leads to the new one."""
    return Path(os.path.realpath(folder))


def _free(beginning: Path) -> Path:
    """The path that begins so, with the first number behind it that is free."""
    names = (beginning.with_name(f"{beginning.name}{number}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
